"""ONNX's node tests, each with one attribute or constant made illegal: all refused at ingest?"""
