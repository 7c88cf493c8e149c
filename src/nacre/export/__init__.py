"""Models in use elsewhere: ONNX files, a page that runs them, model cards."""
