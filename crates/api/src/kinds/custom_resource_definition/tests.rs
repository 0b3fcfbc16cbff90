//! Cases of upstream's tests of definitions, by what they are about.

use json::{Value, json};

use super::*;

fn crd(change: impl FnOnce(&mut Value)) -> Value {
    let mut crd = json!({
        "metadata": {"name": "dogs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "dogs", "singular": "dog", "kind": "Dog", "listKind": "DogList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
        "status": {"storedVersions": ["v1"]},
    });
    change(&mut crd);
    crd
}

fn read(crd: &Value) -> CustomResourceDefinition {
    json::from_value(crd.clone()).expect("a definition")
}

fn shown(errors: crate::validation::field::Errors) -> Vec<String> {
    errors.iter().map(ToString::to_string).collect()
}

fn check(expected: &[&str], change: impl FnOnce(&mut Value)) {
    let crd = crd(change);
    assert_eq!(shown(validation::validate_create(&read(&crd))), expected, "{}", crd["spec"]);
}

/// Errors about a schema, without the place where all schemas stand.
fn of_schema(schema: Value, expected: &[&str]) {
    let crd = crd(|crd| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema.clone());
    let found: Vec<String> = shown(validation::validate_create(&read(&crd)))
        .into_iter()
        .map(|error| error.replace("spec.validation.openAPIV3Schema", "S"))
        .collect();
    assert_eq!(found, expected, "{schema}");
}

fn of_field(field: Value, expected: &[&str]) {
    of_schema(json!({"type": "object", "properties": {"f": field}}), expected);
}

/// Complaints about the parts that all versions have alike are about the whole definition, and are made once.
#[test]
fn versions_that_are_alike_and_versions_that_are_not() {
    let wrong = json!({"type": "object", "properties": {"f": {"type": "text"}}});
    let with = |second: &Value| {
        let crd = crd(|crd| {
            let versions = crd["spec"]["versions"].as_array_mut().expect("versions");
            versions[0]["schema"]["openAPIV3Schema"] = wrong.clone();
            let mut other = versions[0].clone();
            (other["name"], other["storage"]) = ("v2".into(), false.into());
            other["schema"]["openAPIV3Schema"] = second.clone();
            versions.push(other);
        });
        shown(validation::validate_create(&read(&crd)))
    };
    let alike = with(&wrong);
    assert!(!alike.is_empty() && alike.iter().all(|e| e.starts_with("spec.validation.openAPIV3Schema.")), "{alike:?}");
    let one = with(&json!({"type": "object"}));
    assert!(one.iter().all(|e| e.starts_with("spec.versions[0].schema.openAPIV3Schema.")), "{one:?}");
    assert_eq!(one.len(), alike.len());
}

#[test]
fn names_and_groups() {
    check(&[], |_| {});
    let name = "metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group";
    check(&[name], |crd| crd["metadata"]["name"] = json!("x"));
    check(&["spec.group: Invalid value: \"example\": should be a domain with at least one dot"], |crd| {
        crd["spec"]["group"] = json!("example");
        crd["metadata"]["name"] = json!("dogs.example");
    });
    check(&["spec.scope: Unsupported value: \"Planet\": supported values: \"Cluster\", \"Namespaced\""], |crd| {
        crd["spec"]["scope"] = json!("Planet");
    });
    check(&["spec.names.listKind: Invalid value: \"Dog\": kind and listKind may not be the same"], |crd| {
        crd["spec"]["names"]["listKind"] = json!("Dog");
    });
    check(&["spec.names.singular: Required value"], |crd| crd["spec"]["names"]["singular"] = json!(""));
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic \
                 character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation \
                 is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    check(&[&format!("spec.names.shortNames[0]: Invalid value: \"D\": {label}")], |crd| {
        crd["spec"]["names"]["shortNames"] = json!(["D"]);
    });
}

#[test]
fn versions() {
    let two = |crd: &mut Value| {
        let first = crd["spec"]["versions"][0].clone();
        crd["spec"]["versions"].as_array_mut().expect("a list").push(first);
    };
    let crd = crd(two);
    let found = shown(validation::validate_create(&read(&crd)));
    assert!(
        found[0].starts_with("spec.versions: Invalid value: ")
            && found[0].ends_with("must contain unique version names")
    );
    assert!(found[1].ends_with("must have exactly one version marked as storage version"), "{found:?}");
    check(&["spec.versions[0].schema.openAPIV3Schema: Required value"], |crd| {
        crd["spec"]["versions"][0]["schema"] = json!(null);
    });
    check(
        &["spec.versions[0].deprecationWarning: Invalid value: \"x\": can only be set for deprecated versions"],
        |crd| {
            crd["spec"]["versions"][0]["deprecationWarning"] = json!("x");
        },
    );
    check(
        &[
            "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields \
             to true in spec.versions[*].schema instead",
        ],
        |crd| {
            crd["spec"]["preserveUnknownFields"] = json!(true);
        },
    );
    check(&["status.storedVersions: Invalid value: []: must have at least one stored version"], |crd| {
        crd["status"]["storedVersions"] = json!([]);
    });
    check(
        &[
            "status.storedVersions[1]: Invalid value: \"v0\": missing from spec.versions; v0 was previously a storage version, \
             and must remain in spec.versions until a storage migration ensures no data remains persisted in v0 and removes v0 \
             from status.storedVersions",
        ],
        |crd| crd["status"]["storedVersions"] = json!(["v1", "v0"]),
    );
}

#[test]
fn columns_scale_and_selectable_fields() {
    let version = |change: Value, expected: &[&str]| {
        let wanted: Vec<String> = expected.iter().map(|e| format!("spec.{e}")).collect();
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        check(&wanted, |crd| {
            let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "color": {"type": "string"}, "list": {"type": "array", "items": {"type": "string"}}}}}});
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
            for (name, value) in change.as_object().expect("fields") {
                crd["spec"]["versions"][0][name] = value.clone();
            }
        });
    };
    version(
        json!({"additionalPrinterColumns": [{"name": "A", "type": "text", "jsonPath": "a"}]}),
        &[
            "additionalPrinterColumns[0].type: Invalid value: \"text\": must be one of boolean,date,integer,number,string",
            "additionalPrinterColumns[0].JSONPath: Invalid value: \"a\": must be a simple json path starting with .",
        ],
    );
    version(
        json!({"subresources": {"scale": {"specReplicasPath": ".status.n", "statusReplicasPath": ""}}}),
        &[
            "subresources.scale.statusReplicasPath: Required value",
            "subresources.scale.specReplicasPath: Invalid value: \".status.n\": should be a json path under .spec",
        ],
    );
    version(
        json!({"selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.color"}, {"jsonPath": ".spec.list"},
        {"jsonPath": ".spec.none"}]}),
        &[
            "selectableFields[1].jsonPath: Duplicate value: \".spec.color\"",
            "selectableFields[2].jsonPath: Invalid value: \".spec.list\": must point to a field of type string, boolean or integer. \
         Enum string fields and strings with formats are allowed.",
            "selectableFields[3].jsonPath: Invalid value: \".spec.none\": is an invalid path: does not refer to a valid field",
        ],
    );
}

#[test]
fn conversions() {
    let conversion = |conversion: Value, expected: &[&str]| {
        check(expected, |crd| crd["spec"]["conversion"] = conversion);
    };
    conversion(
        json!({"strategy": "Webhook"}),
        &[
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ],
    );
    conversion(
        json!({"strategy": "Other"}),
        &["spec.conversion.strategy: Unsupported value: \"Other\": supported values: \"None\", \"Webhook\""],
    );
    let webhook = |client: Value, reviews: Value| {
        json!({"strategy": "Webhook", "webhook": {"clientConfig": client,
        "conversionReviewVersions": reviews}})
    };
    conversion(webhook(json!({"service": {"namespace": "n", "name": "s", "port": 443}}), json!(["v1"])), &[]);
    conversion(
        webhook(json!({"url": "https://h/p"}), json!(["v9"])),
        &[
            "spec.conversion.conversionReviewVersions: Invalid value: [\"v9\"]: must include at least one of v1, v1beta1",
        ],
    );
    conversion(
        webhook(json!({"url": "http://h?q"}), json!(["v1"])),
        &[
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            "spec.conversion.webhookClientConfig.url: Invalid value: \"q\": query parameters are not permitted in the URL",
        ],
    );
}

#[test]
fn schemas_are_structural() {
    of_schema(json!({}), &["S.type: Required value: must not be empty at the root"]);
    of_schema(json!({"type": "string"}), &["S.type: Invalid value: \"string\": must be object at the root"]);
    of_field(json!({}), &["S.properties[f].type: Required value: must not be empty for specified object fields"]);
    of_field(json!({"x-kubernetes-preserve-unknown-fields": true}), &[]);
    of_field(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}), &[]);
    of_field(json!({"type": "array"}), &["S.properties[f].items: Required value: must be specified"]);
    of_field(
        json!({"type": "object", "oneOf": [{"type": "object", "required": ["a"]}]}),
        &["S.properties[f].oneOf[0].type: Forbidden: must be empty to be structural"],
    );
    of_field(
        json!({"type": "object", "anyOf": [{"properties": {"a": {"minimum": 1}}}]}),
        &[
            "S.properties[f].properties[a]: Required value: because it is defined in S.properties[f].anyOf[0].properties[a]",
        ],
    );
    of_field(
        json!({"type": "string", "pattern": "("}),
        &["S.properties[f].pattern: Invalid value: \"(\": must be a valid \
        regular expression, but isn't: error parsing regexp: missing closing ): `(`"],
    );
    of_schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
        &[
            "S.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
    of_schema(
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}}}}),
        &[],
    );
    of_field(
        json!({"type": "object", "x-kubernetes-embedded-resource": true}),
        &["S.properties[f].properties: Required value: \
        must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"],
    );
}

#[test]
fn words_that_no_schema_may_use() {
    of_field(
        json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true}),
        &["S.properties[f].uniqueItems: \
        Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"],
    );
    of_field(
        json!({"type": "text"}),
        &["S.properties[f].type: Unsupported value: \"text\": supported values: \"array\", \
        \"boolean\", \"integer\", \"number\", \"object\", \"string\""],
    );
    of_field(json!({"type": "object", "$ref": "#/x"}), &["S.properties[f].$ref: Forbidden: $ref is not supported"]);
    of_field(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": false}),
        &["S.properties[f].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    );
    check(
        &["spec.validation.openAPIV3Schema.properties[kind].default: Forbidden: must not be set in top-level kind"],
        |crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
                json!({"kind": {"type": "string", "default": "x"}});
        },
    );
}

#[test]
fn lists_and_their_keys() {
    let list = |more: Value| {
        let mut list = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}});
        for (name, value) in more.as_object().expect("fields") {
            list[name] = value.clone();
        }
        list
    };
    of_field(list(json!({})), &[]);
    of_field(
        list(json!({"x-kubernetes-list-map-keys": ["k", "k"]})),
        &["S.properties[f].x-kubernetes-list-map-keys: Invalid \
        value: [\"k\",\"k\"]: must not contain duplicate entries"],
    );
    of_field(
        list(json!({"items": {"type": "object", "properties": {"k": {"type": "string"}}}})),
        &["S.properties[f].items.\
        properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be \
        a required property"],
    );
    of_field(
        list(json!({"x-kubernetes-list-type": "set"})),
        &[
            "S.properties[f].items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            "S.properties[f].x-kubernetes-list-type: Invalid value: \"set\": must be map if x-kubernetes-list-map-keys is non-empty",
        ],
    );
    of_field(
        json!({"type": "object", "x-kubernetes-map-type": "odd"}),
        &["S.properties[f].x-kubernetes-map-type: Unsupported \
        value: \"odd\": supported values: \"atomic\", \"granular\""],
    );
}

#[test]
fn defaults_fit_their_schemas() {
    of_field(json!({"type": "string", "default": "a"}), &[]);
    of_field(
        json!({"type": "integer", "default": "a"}),
        &["S.properties[f].default: Invalid value: \"string\": \
        S.properties[f].default in body must be of type integer: \"string\""],
    );
    of_field(
        json!({"type": "object", "default": {"x": 1}}),
        &["S.properties[f].default: Invalid value: {\"x\":1}: must not have unknown fields"],
    );
}

#[test]
fn defaults_satisfy_rules_about_changes() {
    let with = |rule: Value, expected: &[&str]| {
        of_field(
            json!({"type": "string", "maxLength": 10, "default": "x", "x-kubernetes-validations": [rule]}),
            expected,
        );
    };
    let fails = |rule: &str| format!("S.properties[f].default: Invalid value: \"x\": failed rule: {rule}");
    with(json!({"rule": "oldSelf == 'y'"}), &[&fails("oldSelf == 'y'")]);
    with(json!({"rule": "oldSelf == self"}), &[]);
    with(json!({"rule": "self == 'y'"}), &[&fails("self == 'y'")]);
    let optional = |rule: &str| json!({"rule": rule, "optionalOldSelf": true});
    with(optional("!oldSelf.hasValue()"), &[&fails("!oldSelf.hasValue()")]);
    with(optional("oldSelf.hasValue()"), &[&fails("oldSelf.hasValue()")]);
    with(optional("oldSelf.orValue(self) == self"), &[]);
}

#[test]
fn defaults_of_whole_objects_and_of_their_metadata() {
    let with = |more: Value, expected: &[&str]| {
        let mut field = json!({"type": "object", "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true});
        field.as_object_mut().expect("an object").extend(more.as_object().cloned().unwrap_or_default());
        of_field(field, expected);
    };
    let property = |name: &str, of: Value| json!({"properties": {name: of}});
    with(property("metadata", json!({"type": "object", "default": {"name": "foo"}})), &[]);
    let labels = json!({"type": "object", "properties": {"labels": {"type": "object", "default": {"a": "b c"},
        "additionalProperties": {"type": "string"}}}});
    let label = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start \
                 and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
                 validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    with(
        property("metadata", labels),
        &[&format!(
            "S.properties[f].properties[metadata].properties[labels].default: Invalid value: {{\"a\":\"b c\"}}: must result \
             in valid metadata: metadata.labels: Invalid value: \"b c\": {label}"
        )],
    );
    let kind = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, \
                and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is \
                '[a-z]([-a-z0-9]*[a-z0-9])?')";
    with(
        property("kind", json!({"type": "string", "default": "%"})),
        &[&format!(
            "S.properties[f].properties[kind].default: Invalid value: \"%\": must result in valid metadata: kind: Invalid \
             value: \"%\": may have mixed case, but should otherwise match: {kind}"
        )],
    );
    with(json!({"default": {"kind": "Pod"}}), &["S.properties[f].default.apiVersion: Required value"]);
    with(json!({"default": {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "n"}}}), &[]);
}

#[test]
fn bundles_of_established_definitions_can_be_read() {
    let with = |bundle: &str, established: &str| {
        read(&crd(|crd| {
            let client = json!({"url": "https://a.example.com", "caBundle": bundle});
            crd["spec"]["conversion"] = json!({"strategy": "Webhook",
                "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]}});
            crd["status"]["conditions"] = json!([{"type": "Established", "status": established}]);
        }))
    };
    let (garbage, refuse) = ("Z2FyYmFnZQ==", "Z2FyYmFnZTI=");
    let update =
        |new: &CustomResourceDefinition, old: &CustomResourceDefinition| shown(validation::validate_update(new, old));
    assert_eq!(shown(validation::validate_create(&with(garbage, "False"))), [""; 0]);
    assert_eq!(
        update(&with(garbage, "True"), &with("", "True")),
        [
            "spec.conversion.webhookClientConfig.caBundle: Invalid value: \"Z2FyYmFnZQ==\": unable to load root certificates: \
          unable to parse bytes as PEM block"
        ]
    );
    let authority = pki::Authority::create("ca").expect("an authority");
    let sound = crate::custom::bundle_error;
    assert_eq!(sound(authority.certificate().as_bytes()), None);
    assert_eq!(sound(format!("garbage\n{}", authority.certificate()).as_bytes()), None);
    assert!(sound(b"-----BEGIN CERTIFICATE-----\nYWJj\n-----END CERTIFICATE-----\n").is_some());
    assert_eq!(update(&with(garbage, "False"), &with("", "False")), [""; 0]);
    assert_eq!(update(&with(refuse, "True"), &with(garbage, "True")), [""; 0]);
}

#[test]
fn rules_compile() {
    let rules = |rules: Value, expected: &[&str]| {
        of_field(
            json!({"type": "object", "properties": {"a": {"type": "integer"}}, "x-kubernetes-validations": rules}),
            expected,
        );
    };
    rules(json!([{"rule": "self.a > 1", "messageExpression": "string(self.a)", "fieldPath": ".a"}]), &[]);
    rules(
        json!([{"rule": " "}]),
        &["S.properties[f].x-kubernetes-validations[0].rule: Required value: rule is not specified"],
    );
    rules(
        json!([{"rule": "self.a"}]),
        &["S.properties[f].x-kubernetes-validations[0].rule: Invalid value: {\"rule\":\"self.a\"}: \
        cel expression must evaluate to a bool"],
    );
    rules(
        json!([{"rule": "true", "fieldPath": ".b"}]),
        &["S.properties[f].x-kubernetes-validations[0].fieldPath: Invalid value: \".b\": must be a valid path"],
    );
    rules(
        json!([{"rule": "true", "reason": "Odd"}]),
        &["S.properties[f].x-kubernetes-validations[0].reason: Unsupported value: \"Odd\": \
        supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\""],
    );
    rules(
        json!([{"rule": "true", "optionalOldSelf": true}]),
        &["S.properties[f].x-kubernetes-validations[0].optionalOldSelf: \
        Invalid value: true: may not be set if oldSelf is not used in rule"],
    );
    of_field(
        json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > oldSelf"}]}}),
        &[
            "S.properties[f].items.x-kubernetes-validations[0].rule: Invalid value: \"self > oldSelf\": oldSelf cannot be used on \
        the uncorrelatable portion of the schema within S.properties[f]",
        ],
    );
}

const HINT: &str = "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and \
                    strings are declared)";

#[test]
fn rules_are_compiled_where_nothing_in_their_place_is_wrong() {
    let missing = |place: &str| {
        format!(
            "S.properties[f]{place}x-kubernetes-validations[0].rule: Invalid value: {{\"rule\":\"missing\"}}: compilation failed: \
             ERROR: <input>:1:1: undeclared reference to 'missing' (in container '')\n | missing\n | ^"
        )
    };
    let with = |unique: bool| {
        let inner = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": unique});
        json!({"type": "object", "x-kubernetes-validations": [{"rule": "missing"}], "properties": {"inner": inner,
            "other": {"type": "string", "x-kubernetes-validations": [{"rule": "missing"}]}}})
    };
    of_field(with(false), &[&missing(".properties[other]."), &missing(".")]);
    let unique = "S.properties[f].properties[inner].uniqueItems: Forbidden: uniqueItems cannot be set to true since the \
                  runtime complexity becomes quadratic";
    of_field(with(true), &[unique, &missing(".properties[other].")]);
    let about_change = json!({"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
    of_field(
        json!({"type": "object", "x-kubernetes-map-type": "future", "properties": {"p": about_change}}),
        &[
            "S.properties[f].x-kubernetes-map-type: Unsupported value: \"future\": supported values: \"atomic\", \"granular\"",
            "S.properties[f].properties[p].x-kubernetes-validations[0].rule: Invalid value: \"self == oldSelf\": oldSelf \
             cannot be used on the uncorrelatable portion of the schema within S.properties[f]",
        ],
    );
}

#[test]
fn patterns_of_find_make_no_program() {
    let rule = |rule: Value, place: &str, stage: &str| {
        let shown = json!(rule);
        let why = "error parsing regexp: unexpected ): `)`";
        let error = format!(
            "S.properties[f].x-kubernetes-validations[0].{place}: Invalid value: {shown}: {stage} instantiation failed: {why}"
        );
        of_field(json!({"type": "string", "maxLength": 10, "x-kubernetes-validations": [rule]}), &[&error]);
    };
    rule(json!({"rule": "self.find(')') == ''"}), "rule", "program");
    let message = json!({"rule": "self == ''", "messageExpression": "self.findAll(')').join('')"});
    rule(message, "messageExpression", "messageExpression");
}

/// The faults of a stored definition stay allowed in it, as far as nothing new depends on their absence.
#[test]
fn stored_faults_may_stay() {
    let with = |field: &Value, more: fn(&mut Value)| {
        let new = crd(|crd| {
            let of = json!({"type": "object", "properties": {"f": field}});
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = of;
            more(crd);
        });
        read(&new)
    };
    let may_stay = |field: Value, more: fn(&mut Value)| {
        let stored = with(&field, more);
        assert!(!validation::validate_create(&stored).is_empty(), "{field}");
        assert_eq!(shown(validation::validate_update(&stored, &stored)), [""; 0], "{field}");
        let sound = with(&json!({"type": "string"}), |_| {});
        assert!(!validation::validate_update(&stored, &sound).is_empty(), "{field}");
    };
    may_stay(json!({"type": "text"}), |_| {});
    may_stay(json!({"type": "object", "default": {"x": 1}}), |_| {});
    may_stay(json!({"type": "string"}), |crd| crd["spec"]["preserveUnknownFields"] = true.into());
    may_stay(json!({}), |crd| crd["spec"]["preserveUnknownFields"] = true.into());
    may_stay(json!({"type": "string"}), |crd| {
        crd["spec"]["versions"][0]["schema"] = Value::Null;
        crd["spec"]["versions"][0]["served"] = false.into();
    });
    let items = |items: Value| json!({"type": "array", "x-kubernetes-list-type": "set", "items": items});
    may_stay(items(json!({"type": "object"})), |_| {});
    may_stay(items(json!({"type": "string", "nullable": true})), |_| {});
    let key = json!({"type": "object", "properties": {"k": {"type": "string"}}});
    may_stay(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": key}),
        |_| {},
    );
    may_stay(json!({"type": "string"}), |crd| {
        crd["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v9"],
            "clientConfig": {"url": "https://a.example.com"}}});
    });
    let many: Value = (0..9).map(|n| (format!("f{n}"), json!({"type": "string"}))).collect::<json::Map>().into();
    may_stay(json!({"type": "object", "properties": many}), |crd| {
        let paths = (0..9).map(|n| json!({"jsonPath": format!(".f.f{n}")}));
        crd["spec"]["versions"][0]["selectableFields"] = paths.collect();
    });
    let update = |new: &Value, old: &Value, more: fn(&mut Value)| {
        shown(validation::validate_update(
            &with(new, more),
            &with(old, |crd| {
                crd["spec"]["preserveUnknownFields"] = true.into();
            }),
        ))
    };
    let kept = |crd: &mut Value| crd["spec"]["preserveUnknownFields"] = true.into();
    let untyped = "spec.validation.openAPIV3Schema.properties[f].type: Required value: must not be empty for specified object \
                   fields";
    assert_eq!(update(&json!({}), &json!({}), |_| {}), [untyped], "fields are pruned by the schema from now on");
    assert_eq!(
        update(&json!({"type": "string", "default": "a"}), &json!({}), kept),
        ["spec.preserveUnknownFields: Invalid value: true: must be false in order to use defaults in the schema"]
    );
}

#[test]
fn rules_that_could_cost_too_much() {
    let text = |rules: Value| json!({"type": "string", "x-kubernetes-validations": rules});
    let list = |items: Value| json!({"type": "array", "items": items});
    let place = "S.properties[f].items.x-kubernetes-validations[0]";
    // A text of any length is walked over once in every list that fits into a request.
    let contributed = |of: &str| {
        format!(
            "{of}: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema"
        )
    };
    let rule = json!([{"rule": "self.contains('x')"}]);
    of_field(
        list(text(rule.clone())),
        &[
            &format!("{place}.rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x {HINT}"),
            &contributed(&format!("{place}.rule")),
            &format!(
                "S: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget \
                 by factor of more than 100x {HINT}"
            ),
        ],
    );
    let mut limited = list(text(rule));
    limited["maxItems"] = json!(100);
    limited["items"]["maxLength"] = json!(1000);
    of_field(limited, &[]);
    let place = "S.properties[f].x-kubernetes-validations[0]";
    let both = "self.split('').all(a, self.split('').exists(b, a == b)) ? 'a' : 'b'";
    let mut message = text(json!([{"rule": "true", "messageExpression": both}]));
    message["maxLength"] = json!(150);
    of_field(
        message,
        &[&format!(
            "{place}.messageExpression: Forbidden: estimated messageExpression cost exceeds budget by factor of 2.4x {HINT}"
        )],
    );
}

/// A rule that was accepted when estimates were lower stays, as far as one rule goes.
#[test]
fn unchanged_rules_may_cost_more() {
    let of = |rule: &str| {
        crd(|crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = json!({"type": "object", "properties": {"f": {
                "type": "array", "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": rule}]}}});
        })
    };
    let (old, new) = (of("self.all(a, a + 1 + 1 + 1 > 0)"), of("self.all(a, a + 1 + 1 + 1 > 1)"));
    assert_eq!(shown(validation::validate_update(&read(&old), &read(&old))), Vec::<String>::new());
    let place = "spec.validation.openAPIV3Schema.properties[f].x-kubernetes-validations[0].rule";
    let wrong = format!("{place}: Forbidden: estimated rule cost exceeds budget by factor of 1.258291x {HINT}");
    assert_eq!(shown(validation::validate_update(&read(&new), &read(&old))), [&*wrong]);
    assert_eq!(shown(validation::validate_create(&read(&new))), [&*wrong]);
}

#[test]
fn what_may_change() {
    let update = |change: fn(&mut Value), expected: &[&str]| {
        let established = |crd: &mut Value| {
            crd["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
        };
        let (old, new) = (crd(established), crd(change));
        assert_eq!(shown(validation::validate_update(&read(&new), &read(&old))), expected);
    };
    update(|crd| crd["spec"]["names"]["shortNames"] = json!(["d"]), &[]);
    update(
        |crd| crd["spec"]["scope"] = json!("Cluster"),
        &["spec.scope: Invalid value: \"Cluster\": field is immutable"],
    );
    update(
        |crd| crd["spec"]["names"]["kind"] = json!("Cat"),
        &["spec.names.kind: Invalid value: \"Cat\": field is immutable"],
    );
    update(|crd| crd["spec"]["group"] = json!("b.c"), &["spec.group: Invalid value: \"b.c\": field is immutable"]);
}

#[test]
fn the_status_of_what_is_wrong_by_now_can_change() {
    let wrong = read(&crd(|crd| crd["spec"]["versions"][0]["schema"] = Value::Null));
    let check = CUSTOM_RESOURCE_DEFINITION.validate_update.expect("updates are checked");
    assert_eq!(shown(check(&wrong, &wrong, Target::Status)), [""; 0]);
    let name = read(&crd(|crd| crd["status"]["acceptedNames"] = json!({"plural": "Dogs", "kind": "Dog"})));
    assert_eq!(check(&name, &wrong, Target::Status).len(), 1);
}

#[test]
fn stored_versions_are_remembered() {
    let mut made = crd(|crd| crd["status"] = json!({}));
    prepare_create(&mut made);
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    let mut next = made.clone();
    next["spec"]["versions"][0]["name"] = json!("v2");
    prepare_update(&mut next, &made, Target::Object);
    assert_eq!(next["status"]["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn unknown_formats_are_warned_about_once() {
    let with = |format: &str| {
        read(&crd(|crd| {
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"] =
                json!({"f": {"type": "string", "format": format}});
        }))
    };
    assert_eq!(warnings(&with("odd"), None), ["unrecognized format \"odd\""]);
    assert_eq!(warnings(&with("odd"), Some(&with("odd"))), [""; 0]);
    assert_eq!(warnings(&with("date-time"), None), [""; 0]);
}
