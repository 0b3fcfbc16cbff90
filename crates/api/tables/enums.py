#!/usr/bin/env python3
"""Writes enums.tsv: the texts that fields of the built-in API may have, where upstream publishes them.

Usage: enums.py SOURCES < schema.tsv > enums.tsv

SOURCES has the folders `api` and `apiextensions-apiserver`: the Go modules of k8s.io of these names, of the version of schema.tsv.

An entry starts with a line `=TYPE`, the Go type, without the prefix `io.k8s.`. Its values follow in order, one a line: a tab, the
value, a tab, what it means. Then come the fields of this type: the definition in documents, a tab, the JSON name, and behind another
tab `[` where the field is a list or map of them.

Upstream's rules: k8s.io/kube-openapi, pkg/generators/enum.go.
"""
import os
import re
import sys

# Folders of Go packages, by the names of their definitions.
ROOTS = [("api", "api."), ("apiextensions-apiserver/pkg/apis", "apiextensions-apiserver.pkg.apis.")]
TYPE = re.compile(r"^type (\w+)( = | )(.+?)(?: \{)?$")
CONSTANT = re.compile(r"^\s*(?:const\s+)?(\w+)\s+([\w.]+)\s*=\s*\"([^\"]*)\"")
CALLED = re.compile(r"^\s*(?:const\s+)?(\w+)\s*=\s*(\w+)\(\"([^\"]*)\"\)")
IMPORT = re.compile(r"^\s*(?:(\w+) )?\"k8s\.io/(api|apiextensions-apiserver/pkg/apis)/([\w./-]+)\"")
MEMBER = re.compile(r"^\t(?:(\w+)\s+)?([\w.*\[\]]+)\s+`.*json:\"([^\"]*)\"")


class Package:
    """What the sources of one package say."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.enums, self.aliases, self.structs, self.constants = set(), {}, {}, []

    def read(self, path):
        comment, struct, imports = [], None, {}
        for line in open(path, encoding="utf-8"):
            line = line.rstrip("\n")
            text = line.strip()
            if text.startswith("//"):
                comment.append(text[2:].removeprefix(" "))
                continue
            if found := IMPORT.match(line):
                root = dict(ROOTS)[found[2]]
                name = root + found[3].replace("/", ".")
                imports[found[1] or found[3].rsplit("/", 1)[-1]] = name
            elif struct is not None:
                if line == "}":
                    struct = None
                elif found := MEMBER.match(line):
                    struct.append((found[1], self.full(found[2], imports), found[3]))
            elif found := TYPE.match(line):
                name, alias, other = found[1], found[2] == " = ", found[3]
                if other == "struct":
                    struct = self.structs[name] = []
                elif alias:
                    self.aliases[name] = self.full(other, imports)
                elif other == "string" and "+enum" in comment:
                    self.enums.add(self.prefix + name)
            elif found := CONSTANT.match(line) or CALLED.match(line):
                self.constants.append((found[1], self.full(found[2], imports), found[3], " ".join(comment)))
            comment = []

    def full(self, name, imports):
        """The name of a type with its package, behind `[` where it is that of elements. Pointers count for nothing."""
        mark, name = "[" * ("]" in name), name.rsplit("]", 1)[-1].lstrip("*")
        package, _, own = name.rpartition(".")
        return mark + (f"{imports[package]}.{own}" if package in imports else self.prefix + name)


def packages(sources):
    for root, prefix in ROOTS:
        for folder, _, files in sorted(os.walk(os.path.join(sources, root))):
            inside = os.path.relpath(folder, os.path.join(sources, root)).replace(os.sep, ".")
            package = Package(f"{prefix}{inside}.")
            for file in sorted(files):
                if file.endswith(".go") and not file.endswith("_test.go") and not file.startswith("zz_"):
                    package.read(os.path.join(folder, file))
            yield package


def meaning(name, comment):
    """What is said of a constant, without its name in front."""
    return re.sub(r"\s+", " ", comment.strip().removeprefix(name).strip())


def members(name, all_structs):
    """The fields of a struct, with those of structs that are written as parts of it."""
    for own, kind, tag in all_structs.get(name, []):
        json = tag.split(",")[0]
        if json and json != "-":
            yield json, kind
        elif own is None or "inline" in tag:
            yield from members(kind, all_structs)


def main(sources, schema):
    enums, aliases, structs, values = set(), {}, {}, {}
    for package in packages(sources):
        enums |= package.enums
        aliases |= {package.prefix + name: of for name, of in package.aliases.items()}
        structs |= {package.prefix + name: fields for name, fields in package.structs.items()}
        for name, kind, value, comment in package.constants:
            known = values.setdefault(kind, {})
            # Of several constants with one value the longest text counts.
            text = comment.strip()
            if value not in known or (len(known[value][1]), known[value][1]) < (len(text), text):
                known[value] = (name, text)
    for alias, of in aliases.items():
        for value in values.pop(alias, {}).items():
            values.setdefault(of, {}).setdefault(*value)
    uses, of = {}, ""
    for line in schema:
        if line.startswith("="):
            of = line[1:].strip().rstrip("!")
            fields = dict(members(of, structs))
        else:
            name = line.split("\t")[0]
            _, mark, kind = fields.get(name, "").rpartition("[")
            kind = aliases.get(kind, kind)
            if kind in enums and values.get(kind):
                uses.setdefault(kind, []).append((of, name, mark) if mark else (of, name))
    for kind in sorted(uses):
        print(f"={kind}")
        for value, (name, comment) in sorted(values[kind].items()):
            print(f"\t{value}\t{meaning(name, comment)}")
        for use in uses[kind]:
            print("\t".join(use))


main(sys.argv[1], sys.stdin)
