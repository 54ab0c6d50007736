"""Test our own handlers in place of generated ones."""

from concurrent.futures import ThreadPoolExecutor

import grpc

from services.rpc.wire import Handler, replace_handlers


def answering(text: bytes) -> Handler:
    return grpc.unary_unary_rpc_method_handler(lambda request, context: text)


def test_one_handler_is_replaced_and_the_others_stay() -> None:
    handlers = {"Fetch": answering(b"theirs"), "Delete": answering(b"theirs")}
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        # As generated code does.
        generic = grpc.method_handlers_generic_handler("a.Service", handlers)
        server.add_generic_rpc_handlers((generic,))
        server.add_registered_method_handlers("a.Service", handlers)  # type: ignore[attr-defined]
        replace_handlers(server, "a.Service", {"Fetch": answering(b"ours")})
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            methods = [channel.unary_unary(f"/a.Service/{name}", None, None) for name in handlers]
            answers = [method(b"") for method in methods]
        server.stop(0).wait()
    assert answers == [b"ours", b"theirs"]
