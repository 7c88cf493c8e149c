"use strict";
const settings = JSON.parse(document.getElementById("settings").textContent);
const at = id => document.getElementById(id);
const showStatus = text => { at("status").textContent = text; };
const MAX_PIXELS = 2 ** 21;  // a larger image is scaled down before the model receives it

// Models: in a worker of this page, or on the server that the page came from.

async function unpack(id) {
  const element = at(id);
  const bytes = Uint8Array.from(atob(element.textContent.trim()), c => c.charCodeAt(0));
  element.remove();
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function askWorker(worker) {
  const waiting = new Map();
  let count = 0;
  worker.onmessage = ({ data }) => {
    const { resolve, reject } = waiting.get(data.id);
    waiting.delete(data.id);
    data.error ? reject(new Error(data.error)) : resolve(data.classes);
  };
  return (message, transfer) => new Promise((resolve, reject) => {
    waiting.set(++count, { resolve, reject });
    worker.postMessage({ id: count, ...message }, transfer);
  });
}

async function startWorker() {
  const text = async id => new TextDecoder().decode(await unpack(id));
  const code = [await text("runtime"), await text("worker")];
  const worker = new Worker(URL.createObjectURL(new Blob(code, { type: "text/javascript" })));
  const ask = askWorker(worker);
  const models = [];
  for (let index = 0; index < settings.models.length; index++) models.push(await unpack(`model-${index}`));
  await ask({ wasm: (await unpack("wasm")).buffer, glue: await text("glue"), models });
  return (model, rgb, height, width) => ask({ model, rgb, height, width }, [rgb.buffer]);
}

async function startServer() {
  return async (model, rgb, height, width) => {
    const answer = await fetch(`classify?model=${model}&height=${height}&width=${width}`, {
      method: "POST", body: rgb, headers: { "Content-Type": "application/octet-stream" },
    });
    if (!answer.ok) throw new Error(await answer.text());
    return new Uint8Array(await answer.arrayBuffer());
  };
}

let classify = null;

// An image as the model receives it. Its size is limited by the memory for the scores.

function inputSize(width, height) {
  const scale = Math.min(1, Math.sqrt(MAX_PIXELS / (width * height)));
  return [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
}

function pixelsOf(source, width, height) {
  const canvas = new OffscreenCanvas(width, height);
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  pen.imageSmoothingQuality = "high";
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.drawImage(source, 0, 0, width, height);
  return pen.getImageData(0, 0, width, height).data;
}

function withoutAlpha(rgba) {
  const rgb = new Uint8Array(rgba.length / 4 * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    rgb[to++] = rgba[from]; rgb[to++] = rgba[from + 1]; rgb[to++] = rgba[from + 2];
  }
  return rgb;
}

async function predict(model, source, width, height) {
  const [w, h] = inputSize(width, height);
  const classes = await classify(model, withoutAlpha(pixelsOf(source, w, h)), h, w);
  return { classes, width: w, height: h };
}

// Display.

const hidden = new Set();
let shown = null;   // { source, name, width, height, results: Map(model -> classes) }
const images = [];

const chosen = () => ({
  after: Number(at("after-model").value || 0),
  before: at("before-model").value === "" ? null : Number(at("before-model").value),
});

function paint(canvas, model, result) {
  canvas.width = result.width;
  canvas.height = result.height;
  const { colors } = settings.models[model];
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(result.width, result.height);
  const values = new Uint32Array(image.data.buffer);
  const table = colors.map(([r, g, b], channel) =>
    channel === 0 || hidden.has(settings.models[model].classes[channel])
      ? 0 : (255 << 24 | b << 16 | g << 8 | r) >>> 0);
  for (let i = 0; i < values.length; i++) values[i] = table[result.classes[i]];
  pen.putImageData(image, 0, 0);
}

function fractions(model, result) {
  const { classes } = settings.models[model];
  const counts = new Array(classes.length).fill(0);
  for (const channel of result.classes) counts[channel]++;
  return new Map(classes.map((name, i) => [name, counts[i] / result.classes.length]));
}

function showLegend() {
  const { after, before } = chosen();
  const now = shown && shown.results.get(after) ? fractions(after, shown.results.get(after)) : null;
  const then = before !== null && shown && shown.results.get(before) ? fractions(before, shown.results.get(before)) : null;
  at("before-head").hidden = before === null;
  const percent = (found, name) => found === null ? "" : found.has(name) ? `${(found.get(name) * 100).toFixed(1)} %` : "–";
  at("legend").replaceChildren(...settings.models[after].classes.map((name, channel) => {
    const row = document.createElement("tr");
    const cells = [0, 1, 2, 3].map(() => row.insertCell());
    const box = Object.assign(document.createElement("input"), {
      type: "checkbox", id: `class-${channel}`, checked: channel > 0 && !hidden.has(name), disabled: channel === 0,
    });
    box.addEventListener("change", () => { box.checked ? hidden.delete(name) : hidden.add(name); show(); at(`class-${channel}`).focus(); });
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.background = `rgb(${settings.models[after].colors[channel].join(",")})`;
    const label = Object.assign(document.createElement("label"), { htmlFor: box.id });
    label.append(swatch, name);
    cells[0].append(box);
    cells[1].append(label);
    cells[2].textContent = percent(then, name);
    cells[2].hidden = before === null;
    cells[3].textContent = percent(now, name);
    cells[2].className = cells[3].className = "number";
    return row;
  }));
}

function show() {
  showLegend();
  if (!shown) return;
  const { after, before } = chosen();
  const opacity = at("opacity").value;
  const divide = at("divide").value;
  const compares = before !== null;
  at("opacity-value").textContent = `${opacity} %`;
  at("divide-value").textContent = `${divide} %`;
  at("divide").disabled = !compares;
  at("divider").hidden = !compares;
  at("divider").style.left = `${divide}%`;
  at("before").hidden = !compares;
  if (shown.results.get(after)) paint(at("after"), after, shown.results.get(after));
  if (compares && shown.results.get(before)) paint(at("before"), before, shown.results.get(before));
  for (const id of ["after", "before"]) at(id).style.opacity = opacity / 100;
  at("before").style.clipPath = `inset(0 ${100 - divide}% 0 0)`;
  at("after").style.clipPath = compares ? `inset(0 0 0 ${divide}%)` : "";
  const names = settings.models.map(model => model.name);
  const compared = compares ? `, left ${names[before]}, right ${names[after]}` : names.length > 1 ? `, ${names[after]}` : "";
  at("caption").textContent = `${shown.name}, ${shown.width} × ${shown.height}${compared}`;
}

function drawSource() {
  const canvas = at("image");
  const scale = Math.min(1, 1600 / Math.max(shown.width, shown.height));
  canvas.width = Math.max(1, Math.round(shown.width * scale));
  canvas.height = Math.max(1, Math.round(shown.height * scale));
  canvas.getContext("2d").drawImage(shown.source, 0, 0, canvas.width, canvas.height);
  at("layout").hidden = false;
}

async function select(image) {
  shown = image;
  drawSource();
  const { after, before } = chosen();
  for (const model of new Set(before === null ? [after] : [after, before])) {
    if (image.results.get(model)) continue;
    showStatus(`Predicting ${image.name} …`);
    await new Promise(resolve => setTimeout(resolve));
    const began = performance.now();
    image.results.set(model, await predict(model, image.source, image.width, image.height));
    showStatus(`Predicted in ${((performance.now() - began) / 1000).toFixed(1)} s`);
  }
  if (shown === image) show();
}

const safely = work => (...given) => Promise.resolve(work(...given)).catch(error => showStatus(`That did not work: ${error.message || error}`));

// Sources of images.

async function addImage(file) {
  // The stored colors, as in training, without the color profile of the file.
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" })
    .catch(() => { throw new Error(`${file.name} is not an image that this browser reads`); });
  const image = { source: bitmap, name: file.name, width: bitmap.width, height: bitmap.height, results: new Map() };
  images.push(image);
  const button = Object.assign(document.createElement("button"), { type: "button", title: file.name });
  button.setAttribute("aria-label", `Show ${file.name}`);
  const small = document.createElement("canvas");
  small.height = 128;
  small.width = Math.max(1, Math.round(128 * bitmap.width / bitmap.height));
  small.getContext("2d").drawImage(bitmap, 0, 0, small.width, small.height);
  button.append(small);
  button.addEventListener("click", safely(async () => { stopMoving(); press(button); await select(image); }));
  at("gallery").append(button);
  press(button);
  await select(image);
}

function press(button) {
  for (const one of at("gallery").children) one.setAttribute("aria-pressed", one === button);
}

let moving = null;  // a camera or a video that is predicted frame by frame

function stopMoving() {
  if (!moving) return;
  const { video } = moving;
  moving = null;
  video.pause();
  if (video.srcObject) for (const track of video.srcObject.getTracks()) track.stop();
  at("camera").setAttribute("aria-pressed", "false");
}

async function follow(video, name) {
  stopMoving();
  press(null);
  const mine = moving = { video };
  await video.play();
  while (moving === mine && !video.ended) {
    const frame = await createImageBitmap(video);
    const image = { source: frame, name, width: frame.width, height: frame.height, results: new Map() };
    const { after, before } = chosen();
    for (const model of new Set(before === null ? [after] : [after, before])) {
      image.results.set(model, await predict(model, frame, frame.width, frame.height));
    }
    if (moving !== mine) break;
    shown = image;
    drawSource();
    show();
    await new Promise(requestAnimationFrame);
  }
  if (moving === mine) stopMoving();
}

const addVideo = file => follow(Object.assign(document.createElement("video"), {
  src: URL.createObjectURL(file), muted: true, playsInline: true,
}), file.name);

async function add(files) {
  stopMoving();
  for (const file of files) await (file.type.startsWith("video/") ? addVideo(file) : addImage(file));
}

async function toggleCamera() {
  if (moving) { stopMoving(); return; }
  if (!navigator.mediaDevices) throw new Error("this browser does not allow a camera in pages from files");
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  at("camera").setAttribute("aria-pressed", "true");
  await follow(Object.assign(document.createElement("video"), { srcObject: stream, muted: true, playsInline: true }), "camera");
}

// Files to save.

async function palettePng(classes, width, height, colors) {
  const rows = new Uint8Array((width + 1) * height);
  for (let y = 0; y < height; y++) rows.set(classes.subarray(y * width, (y + 1) * width), y * (width + 1) + 1);
  const packed = new Blob([rows]).stream().pipeThrough(new CompressionStream("deflate"));
  const header = new DataView(new ArrayBuffer(13));
  header.setUint32(0, width);
  header.setUint32(4, height);
  header.setUint8(8, 8);
  header.setUint8(9, 3);
  const parts = [new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10]),
    pngChunk("IHDR", new Uint8Array(header.buffer)), pngChunk("PLTE", new Uint8Array(colors.flat())),
    pngChunk("IDAT", new Uint8Array(await new Response(packed).arrayBuffer())), pngChunk("IEND", new Uint8Array())];
  return new Blob(parts, { type: "image/png" });
}

function pngChunk(type, content) {
  const chunk = new Uint8Array(content.length + 12);
  const view = new DataView(chunk.buffer);
  view.setUint32(0, content.length);
  chunk.set([...type].map(c => c.charCodeAt(0)), 4);
  chunk.set(content, 8);
  let sum = 0xffffffff;
  for (let i = 4; i < content.length + 8; i++) {
    sum ^= chunk[i];
    for (let bit = 0; bit < 8; bit++) sum = sum >>> 1 ^ (sum & 1 ? 0xedb88320 : 0);
  }
  view.setUint32(content.length + 8, ~sum >>> 0);
  return chunk;
}

function atOwnSize(result, width, height) {
  const found = new Uint8Array(width * height);
  for (let y = 0, to = 0; y < height; y++) {
    const row = Math.floor((y + 0.5) * result.height / height) * result.width;
    for (let x = 0; x < width; x++) found[to++] = result.classes[row + Math.floor((x + 0.5) * result.width / width)];
  }
  return found;
}

function offer(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const stem = () => shown.name.replace(/\.[^.]*$/, "");

async function maskOf(image) {
  const { after } = chosen();
  const classes = atOwnSize(image.results.get(after), image.width, image.height);
  return palettePng(classes, image.width, image.height, settings.models[after].colors);
}

async function overlayOf(image) {
  const canvas = new OffscreenCanvas(image.width, image.height);
  const pen = canvas.getContext("2d");
  pen.drawImage(image.source, 0, 0);
  pen.globalAlpha = at("opacity").value / 100;
  pen.drawImage(at("after"), 0, 0, image.width, image.height);
  return canvas.convertToBlob({ type: "image/png" });
}

// Controls.

function offerModels() {
  const option = (text, value) => Object.assign(document.createElement("option"), { textContent: text, value });
  const names = settings.models.map((model, index) => option(model.name, index));
  at("after-model").replaceChildren(...names);
  at("after-model").value = settings.models.length - 1;
  at("before-model").replaceChildren(option("nothing", ""), ...names.map(one => one.cloneNode(true)));
  at("compare").hidden = settings.models.length < 2;
}

at("files").addEventListener("change", safely(async event => { await add([...event.target.files]); event.target.value = ""; }));
at("camera").addEventListener("click", safely(toggleCamera));
for (const id of ["opacity", "divide"]) at(id).addEventListener("input", show);
for (const id of ["after-model", "before-model"]) {
  at(id).addEventListener("change", safely(async () => { if (shown && !moving) await select(shown); else show(); }));
}
at("save-mask").addEventListener("click", safely(async () => offer(await maskOf(shown), `${stem()}-mask.png`)));
at("save-overlay").addEventListener("click", safely(async () => offer(await overlayOf(shown), `${stem()}-overlay.png`)));
addEventListener("dragover", event => { event.preventDefault(); at("drop").hidden = false; });
addEventListener("dragleave", event => { if (!event.relatedTarget) at("drop").hidden = true; });
addEventListener("drop", safely(async event => {
  event.preventDefault();
  at("drop").hidden = true;
  await add([...event.dataTransfer.files]);
}));

offerModels();
show();
const ready = (settings.server ? startServer() : startWorker()).then(engine => {
  classify = engine;
  showStatus("Ready: choose an image.");
});
ready.catch(error => showStatus(`The model does not run here: ${error.message || error}`));
