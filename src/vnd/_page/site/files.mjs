// Files inside the page, and files that leave it: unpacked, as .npy, saved.

/** Bytes of base64. */
export function decoded(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

/** The bytes of a compressed file of the page; its text is let go of. */
export async function unpack(name) {
  const place = document.getElementById(name);
  const packed = decoded(place.textContent);
  place.remove();
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** An array of float32 as numpy.load reads it. */
export function npy(values, shape) {
  const words = `{'descr': '<f4', 'fortran_order': False, 'shape': (${shape.join(", ")},), }`;
  const header = words.padEnd(Math.ceil((words.length + 11) / 64) * 64 - 11) + "\n";
  const start = new Uint8Array(10 + header.length);
  start.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, header.length & 255, header.length >> 8]);
  start.set(new TextEncoder().encode(header), 10);
  return new Blob([start, new Uint8Array(Float32Array.from(values).buffer)]);
}

/** Hand a file to the visitor. */
export function save(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content]));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
