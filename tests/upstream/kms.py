"""A KMS plugin of version v2 at the Unix socket that is named. Its ciphertext is the plaintext turned around."""

import concurrent.futures
import sys

import grpc

KEY = b"key-1"


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def fields(message):
    """The fields of a message of short texts."""
    found = {}
    while message:
        length = message[1]
        found[message[0] >> 3], message = message[2:2 + length], message[2 + length:]
    return found


def status(_, __):
    return field(1, b"v2") + field(2, b"ok") + field(3, KEY)


def encrypt(request, _):
    annotation = field(1, b"turned.example.com") + field(2, b"around")
    return field(1, fields(request)[1][::-1]) + field(2, KEY) + field(3, annotation)


def decrypt(request, context):
    found = fields(request)
    if found[3] != KEY or b"around" not in found[4]:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown key")
    return field(1, found[1][::-1])


methods = {"Status": status, "Encrypt": encrypt, "Decrypt": decrypt}
handlers = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v2.KeyManagementService", handlers),))
server.add_insecure_port(f"unix:{sys.argv[1]}")
server.start()
server.wait_for_termination()
