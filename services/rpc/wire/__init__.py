"""Messages of bulk bytes, written and read without the copies that protobuf makes of them.

On the wire they are what protobuf writes (https://protobuf.dev/programming-guides/encoding). What
protobuf might write otherwise is left to protobuf to read.
"""
