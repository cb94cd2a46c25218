// The page: one slider, one picture, one call in Python; what stands between them is a view of the network's kind.
// A view has: words, stops, bars, start(), show(state) and python(state).

import * as classes from "#classes";
import * as codes from "#codes";
import * as masks from "#masks";
import { save } from "#files";
import { fed, pixelsOf, read, thumbnail } from "#picture";
import { start } from "#runtime";
import { tag } from "#words";

const place = (id) => document.getElementById(id);
const facts = JSON.parse(place("facts").textContent);
const kinds = { classes: classes.View, codes: codes.View, masks: masks.View };
const pictures = [...facts.pictures];

/** All that can be chosen: the stop of the slider, the picture, and the seed of the draws. */
export const state = { stop: 0, picture: 0, seed: 0, drawn: false };
export let view;

async function begin() {
  await start();
  view = new kinds[facts.kind](facts);
  await view.start();
  place("heading").textContent = view.words.heading;
  place("lead").textContent = view.words.lead;
  place("size-heading").textContent = view.words.size;
  place("sight-heading").textContent = view.words.sight;
  place("stop-label").textContent = view.words.stop;
  place("least").textContent = view.words.least;
  place("most").textContent = view.words.most;
  place("size-note").textContent = view.words.note;
  place("again").textContent = view.words.again;
  place("again").hidden = !view.words.again;
  view.words.explained.forEach((words) => place("explained").append(tag("p", {}, words)));
  [...facts.credits, `Runs in this page: onnxruntime-web ${facts.runtime}, MIT; its license:`].forEach((words) =>
    place("credits").append(tag("li", {}, words)),
  );
  document.documentElement.style.setProperty("--aspect", facts.image[2] / facts.image[1]);
  view.place = place("view");
  view.lay();
  for (const [name, words, made] of view.files()) {
    const button = tag("button", { type: "button" }, words);
    button.addEventListener("click", () => save(name, made()));
    place("saves").append(button);
  }
  const stop = place("stop");
  stop.max = view.stops.length - 1;
  stop.disabled = stop.hidden = view.stops.length < 2;
  state.stop = stop.value = view.stops.length - 1;
  stop.addEventListener("input", () => change({ stop: Number(stop.value) }));
  place("again").addEventListener("click", () => change({ seed: state.seed + 1, drawn: true }));
  place("file").addEventListener("change", ({ target }) => target.files[0] && own(target.files[0]));
  listenForDrops();
  pictures.forEach((_, index) => offer(index));
  place("state").hidden = true;
  place("stage").hidden = false;
  await change({});
  document.documentElement.dataset.ready = Math.round(performance.now());
  await view.measure();
  await change({});
  document.documentElement.dataset.measured = "yes";
}

let wanted = 0, running = Promise.resolve();

/** Change what is chosen and show it; of several changes in a row the last one is shown. */
export function change(some) {
  Object.assign(state, some);
  const turn = ++wanted;
  running = running.then(async () => {
    if (turn !== wanted) return;
    state.pixels = pixelsOf(pictures[state.picture]);
    if (state.fed !== state.pixels) state.image = fed(state.pixels, facts.image, facts.mean, facts.std);
    state.fed = state.pixels;
    state.chosen = pictures[state.picture];
    const found = await view.show(state);
    figures(view.figures(state));
    bars(view.bars(state));
    place("code").textContent = `import numpy, vnd\n${view.python(state)}`;
    place("stop").setAttribute("aria-valuetext", view.stops[state.stop]);
    place("stop").style.setProperty("--done", `${(100 * state.stop) / Math.max(1, view.stops.length - 1)}%`);
    Object.assign(document.documentElement.dataset, { shown: `${state.stop} ${state.picture} ${state.seed}` });
    return found;
  });
  return running;
}

/** The numbers above the bars: [what, value, words below]. */
function figures(rows) {
  place("figures").replaceChildren(
    ...rows.map(([what, value, below]) => {
      const shown = tag("dd", {}, tag("b", {}, value), tag("small", {}, below));
      return tag("div", {}, tag("dt", {}, what), shown);
    }),
  );
}

/** Bars, {height, lit, words}: made once, then moved. */
function bars({ label, rows }) {
  const holder = place("bars"), few = rows.length <= 8;
  holder.hidden = !rows.length;
  holder.style.gap = rows.length > 60 ? "0" : rows.length > 24 ? "1px" : "";
  while (holder.children.length < rows.length) {
    const track = tag("div", { class: "track" }, tag("div", { class: "fill" }));
    holder.append(tag("div", { class: "bar" }, track, ...(few ? [tag("span"), tag("span")] : [])));
  }
  rows.forEach(({ height, lit, words }, index) => {
    const bar = holder.children[index], fill = bar.querySelector(".fill");
    fill.style.height = `${100 * height}%`;
    fill.classList.toggle("off", !lit);
    bar.querySelectorAll("span").forEach((span, which) => (span.textContent = words[which]));
  });
  holder.setAttribute("aria-label", label);
}

/** A thumbnail to choose a picture by. */
function offer(index) {
  const picture = pictures[index], before = pictures[index - 1];
  if (before && before.kind !== picture.kind) place("strip").append(tag("hr"));
  const radio = tag("input", { type: "radio", name: "picture", "aria-label": picture.name });
  radio.checked = index === state.picture;
  radio.addEventListener("change", () => change({ picture: index, drawn: false }));
  place("strip").append(tag("label", { title: picture.name }, radio, thumbnail(pixelsOf(picture), facts.image)));
  return radio;
}

/** Show a picture of the visitor's own, or a sentence where the file is none. */
export async function own(file) {
  place("problem").textContent = "";
  try {
    const bytes = await read(file, facts.image);
    pictures.push({ name: file.name, kind: "own", label: null, bytes });
    offer(pictures.length - 1).checked = true;
    await change({ picture: pictures.length - 1, drawn: false });
  } catch (error) {
    place("problem").textContent = error.message;
  }
  place("file").value = "";
}

function listenForDrops() {
  const over = (on) => document.documentElement.classList.toggle("dropping", on);
  addEventListener("dragover", (event) => (event.preventDefault(), over(true)));
  addEventListener("dragleave", (event) => event.relatedTarget === null && over(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(false);
    if (event.dataTransfer.files[0]) own(event.dataTransfer.files[0]);
  });
}

begin().catch((error) => {
  place("stage").hidden = true;
  place("state").hidden = false;
  place("state").textContent = `This browser could not run the network: ${error.message}`;
});
