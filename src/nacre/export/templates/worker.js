// Runs the models in a separate thread, so that the page stays responsive.
let sessions = [];
onmessage = async ({ data }) => {
  try {
    if (data.wasm) {
      ort.env.wasm.numThreads = 1;
      ort.env.wasm.wasmBinary = data.wasm;
      const glue = new Blob([data.glue], { type: "text/javascript" });
      ort.env.wasm.wasmPaths = { mjs: URL.createObjectURL(glue) };
      ort.env.logLevel = "error";
      for (const model of data.models) sessions.push(await ort.InferenceSession.create(model));
      postMessage({ id: data.id });
      return;
    }
    const { id, model, rgb, height, width } = data;
    const image = new ort.Tensor("uint8", rgb, [1, height, width, 3]);
    const { classes } = await sessions[model].run({ image });
    postMessage({ id, classes: classes.data });
  } catch (error) {
    postMessage({ id: data.id, error: String((error && error.message) || error) });
  }
};
