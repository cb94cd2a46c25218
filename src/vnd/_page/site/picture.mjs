// Pictures: those of the page and the visitor's own, as pixels of the network's size, and back onto a canvas.

import { decoded } from "#files";

const LUMA = [0.299, 0.587, 0.114]; // grey of colors, as ITU-R BT.601 and Pillow have it

/** Pixels (C, H, W), bytes, of a picture of the page. */
export const pixelsOf = (picture) => (picture.bytes ??= decoded(picture.pixels));

/** Pixels of a file that the visitor chose: its middle square, brought to a size. Throws a sentence if it is no image. */
export async function read(file, [channels, height, width]) {
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error(`“${file.name}” is not a picture that this browser can open. PNG, JPEG and WebP files work.`);
  }
  const side = Math.min(bitmap.width / width, bitmap.height / height);
  const [across, down] = [side * width, side * height];
  const from = [(bitmap.width - across) / 2, (bitmap.height - down) / 2, across, down];
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  Object.assign(pen, { fillStyle: "#fff", imageSmoothingQuality: "high" });
  pen.fillRect(0, 0, width, height); // behind what is transparent
  pen.drawImage(await halved(bitmap, from, width, height), 0, 0, width, height);
  const { data } = pen.getImageData(0, 0, width, height), count = width * height;
  const found = new Uint8Array(channels * count);
  for (let i = 0; i < count; i++) {
    const colors = data.subarray(4 * i, 4 * i + 3);
    if (channels === 1) found[i] = Math.round(LUMA.reduce((sum, share, c) => sum + share * colors[c], 0));
    else for (let c = 0; c < channels; c++) found[c * count + i] = colors[c % 3];
  }
  return found;
}

/** A part of a picture, halved as often as it takes: canvases look at four pixels only, and skip the others. */
async function halved(bitmap, [x, y, across, down], width, height) {
  let canvas = Object.assign(document.createElement("canvas"), { width: Math.ceil(across), height: Math.ceil(down) });
  canvas.getContext("2d").drawImage(bitmap, x, y, across, down, 0, 0, canvas.width, canvas.height);
  while (canvas.width > 2 * width && canvas.height > 2 * height) {
    const half = Object.assign(document.createElement("canvas"), {
      width: Math.ceil(canvas.width / 2),
      height: Math.ceil(canvas.height / 2),
    });
    const pen = half.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(canvas, 0, 0, half.width, half.height);
    canvas = half;
  }
  return canvas;
}

/** What a network is fed: pixels between 0 and 1, less the mean, over the std of their channel. */
export function fed(pixels, [channels, height, width], mean, std) {
  const count = height * width;
  return Float32Array.from(pixels, (value, index) => {
    const channel = Math.floor(index / count);
    return (value / 255 - (mean?.[channel] ?? 0)) / (std?.[channel] ?? 1);
  });
}

/** Paint pixels (C, H, W), bytes, onto a canvas; where `mask` is 1 they are tinted, its edge is drawn. */
export function paint(canvas, pixels, [channels, height, width], mask) {
  Object.assign(canvas, { width, height });
  const image = new ImageData(width, height), count = width * height;
  for (let i = 0; i < count; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = pixels[(channels >= 3 ? c : 0) * count + i];
    image.data[4 * i + 3] = 255;
    const share = mask ? mask[i] : 0;
    if (share) tint.forEach((to, c) => (image.data[4 * i + c] += (to - image.data[4 * i + c]) * 0.75 * share));
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

const tint = [255, 122, 0];

/** A small canvas of a picture. */
export function thumbnail(pixels, shape) {
  const canvas = document.createElement("canvas");
  paint(canvas, pixels, shape);
  canvas.setAttribute("aria-hidden", "true");
  return canvas;
}
