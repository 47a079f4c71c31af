"""The HTTP API: `create_app(settings)` in app.py is the whole surface.

Comes in: requests.  Goes out: JSON documents, streamed files, events, and for every refusal one
RFC 9457 problem document with a catalogue code.  Routes translate between HTTP and `service.jobs` /
`service.store`; they must not know the queue, ONNX, numpy or any stage of the compiler beyond the
machine schema.
"""
