// Checks of pages in headless Chromium, its network off: node browser.mjs pages.json

import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const { chromium: executablePath, place, pages } = JSON.parse(readFileSync(process.argv[2]));
const axe = readFileSync(join(place, "node_modules/axe-core/axe.min.js"), "utf8");
const quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"];
const args = [...quiet, "--disable-component-update", "--disable-sync"];
let failed = 0;

function check(name, good, words = "") {
  console.log(`${good ? "ok    " : "FAILED"} ${name}${words && `: ${words}`}`);
  failed += good ? 0 : 1;
}

/** The largest difference of two arrays of any depth, as a share of the larger number where that is more than 1. */
function apart(got, want) {
  if (!Array.isArray(want)) return Number.isFinite(got) ? Math.abs(got - want) / Math.max(1, Math.abs(want)) : Infinity;
  if (got?.length !== want.length) return Infinity;
  return want.reduce((most, value, index) => Math.max(most, apart(got[index], value)), 0);
}

const NEAR = 5e-5; // to four decimals
check("numbers that differ in the fourth decimal are told apart", apart([[0.5, 2]], [[0.5001, 2]]) > NEAR);
check("numbers that are missing, or none, are told apart", apart([1, NaN], [1, 2]) > NEAR && apart([1], [1, 2]) > NEAR);

/** A page that is opened from its file: with what it asked for and said. */
async function open(path, options = {}) {
  const context = await chromium.launchPersistentContext(mkdtempSync(join(tmpdir(), "page-")), {
    executablePath, args, offline: true, viewport: { width: 1280, height: 900 }, colorScheme: "light", ...options,
  });
  const page = await context.newPage();
  const asked = [], stopped = [], said = [];
  page.on("request", (request) => /^(blob|data):/.test(request.url()) || asked.push(request.url()));
  page.on("requestfailed", (request) => request.failure().errorText === "csp" && stopped.push(request.url()));
  page.on("console", (message) => said.push(message.text()));
  page.on("pageerror", (error) => said.push(error.message));
  await page.goto(`file://${path}`);
  await page.waitForSelector("html[data-ready]", { timeout: 120000 });
  return { page, context, asked, stopped, said };
}

const data = (page, name) => page.evaluate((name) => document.documentElement.dataset[name], name);
const shown = (page, words) => page.waitForSelector(`html[data-shown="${words}"]`, { timeout: 60000 });
const measured = (page) => page.waitForSelector("html[data-measured]", { timeout: 120000 });
const numbers = (text) => text.split("# ").at(-1).match(/-?\d+\.\d{4}/g).map(Number);

/** What the view of a page says at a stop: through the interface first, then all numbers of it. */
async function numbersAt(page, kind, withMeans) {
  return page.evaluate(async ([kind, withMeans]) => {
    const { view, state } = await import("#page");
    const some = (values) => Array.from(values);
    if (kind === "codes") return { values: some(view.decoded), code: some(view.code) };
    if (kind === "masks") return { values: some(view.logits) };
    const { number } = view.widths[state.stop];
    const { draws, probs, entropy } = view.answer;
    const means = withMeans && (await view.classifier.predict(state.image, number, 0, 0)).probs;
    return { draws, probs, entropy, means, verdict: document.querySelector(".verdict b").textContent };
  }, [kind, withMeans]);
}

/** The largest differences of all stops of a page, reached by arrow keys, from what Python says, for a seed. */
async function compare(page, { name, kind, stops }, seed) {
  const worst = { page: 0, torch: 0, means: 0, code: 0, words: 0, verdicts: 0 };
  await page.focus("#stop");
  await page.keyboard.press("End");
  for (let stop = stops.length - 1; stop >= 0; stop--) {
    await shown(page, `${stop} 0 ${seed}`);
    const row = stops[stop], want = row.seeds[seed], got = await numbersAt(page, kind, Boolean(row.means));
    const most = (key, value) => (worst[key] = Math.max(worst[key], value));
    const words = numbers(await page.textContent("#code"));
    if (kind === "classes") {
      most("page", apart([got.draws, got.probs, [got.entropy]], [want.draws, want.probs, want.entropy]));
      if (want.torch) most("torch", apart(got.draws, want.torch));
      if (row.means) most("means", apart(got.means, row.means));
      most("words", apart(words, want.probs.slice(0, words.length)) - 5e-5);
      if (seed === 0 && row.ruled) worst.verdicts += (got.verdict !== "I would rather not say") !== row.given;
    } else {
      most("page", apart(got.values, want));
      if (kind === "codes" && seed === 0) most("code", apart(got.code, row.code));
      if (row.torch && seed === 0) most("torch", apart(got.values, row.torch));
      most("words", Math.min(...words.map((word) => Math.min(...want.map((value) => Math.abs(value - word))))) - 5e-5);
    }
    await page.keyboard.press("ArrowLeft");
  }
  return worst;
}

function compared(name, count, seed, worst) {
  const largest = Math.max(...Object.values(worst));
  const told = Object.entries(worst).filter(([, value]) => value > 0).map(([key, value]) => `${key} ${value.toExponential(1)}`);
  check(`${name}: ${count} stops by arrow keys give Python's numbers, seed ${seed}`, largest <= NEAR, told.join(", "));
}

/** What axe-core finds, [impact, rule, how often, where first]. */
async function violations(page) {
  await page.addScriptTag({ content: axe });
  return page.evaluate(async () => {
    const { violations } = await window.axe.run();
    return violations.map(({ id, impact, nodes }) => [impact, id, nodes.length, nodes[0].target.join(" ")]);
  });
}

async function accessible(page, where) {
  const found = await violations(page);
  const grave = found.filter(([impact]) => impact === "serious" || impact === "critical");
  check(`${where}: axe-core finds nothing serious`, grave.length === 0, (grave.length ? grave : found).map((row) => row.join(" ")).join("; "));
}

for (const one of pages) {
  const { name, path, kind, stops, own } = one;
  check(`${name}: its size is within the bound`, one.bytes <= one.bound, `${one.bytes} of ${Math.round(one.bound)} bytes`);
  const { page, context, asked, said } = await open(path);
  check(`${name}: opens from a file with the network off`, true, `ready in ${await data(page, "ready")} ms`);
  await measured(page);
  compared(name, stops.length, 0, await compare(page, one, 0));
  await page.click("#again");
  compared(name, stops.length, 1, await compare(page, one, 1));
  await page.setInputFiles("#file", { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from("no picture") });
  await page.waitForSelector("#problem:not(:empty)");
  const sentence = await page.textContent("#problem");
  check(`${name}: a file that is no image gets a sentence`, /^“notes\.txt” is not a picture .+\.$/.test(sentence), sentence);
  await page.setInputFiles("#file", own.path);
  await page.waitForFunction(() => {
    const last = document.querySelectorAll("#strip input").length - 1;
    return Number(document.documentElement.dataset.shown.split(" ")[1]) === last && last > 0;
  });
  const pixels = await page.evaluate(async () => Array.from((await import("#page")).state.pixels));
  check(`${name}: a picture of the visitor's own is read`, apart(pixels, own.pixels) === 0, await page.textContent("#problem"));
  await page.evaluate(() => {
    const transfer = new DataTransfer();
    transfer.items.add(new File(["no picture"], "dropped.txt"));
    document.querySelector("main").dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
  });
  await page.waitForSelector("#problem:not(:empty)");
  check(`${name}: one that is dropped, too`, (await page.textContent("#problem")).includes("dropped.txt"));
  const saved = page.waitForEvent("download");
  await page.click("#saves button:last-child");
  check(`${name}: a file can be saved`, /\.npy$/.test((await saved).suggestedFilename()));
  await page.keyboard.press("Tab");
  await accessible(page, `${name}, light`);
  check(`${name}: asked for nothing but itself`, asked.length === 1 && asked[0].startsWith("file://"), asked.slice(1).join(" "));
  await context.close();
  const dark = await open(path, { colorScheme: "dark", viewport: { width: 390, height: 844 } });
  await measured(dark.page);
  const width = await dark.page.evaluate(() => document.documentElement.scrollWidth);
  check(`${name}: 390 pixels wide without sideways scrolling`, width <= 390, `${width}`);
  await dark.page.click("summary");
  await accessible(dark.page, `${name}, dark and narrow`);
  await dark.context.close();
  check(`${name}: no message on the console`, said.length + dark.said.length === 0, [...said, ...dark.said].join("; "));
  if (one.pictures) await take(path, stops.length);
  else if (kind !== "classes") await shoot(path, `page-test-${kind}.png`);
}
await faults(pages.find(({ name }) => name === "weight"));
console.log(failed ? `${failed} checks FAILED` : "all checks passed");
process.exit(failed ? 1 : 0);

/** Copies of a page with a fault each: what is checked above must see it. */
async function faults(one) {
  const text = readFileSync(one.path, "utf8"), policy = /<meta http-equiv="Content-Security-Policy"[^>]*>/;
  const picture = (text) => text.replace("</main>", '<img alt="" src="http://127.0.0.1:9/x.png"></main>');
  const planted = {
    "another noise": text.replace("0x2360ed051fc65da44385df649fccf645n", "0x2360ed051fc65da44385df649fccf64dn"),
    "a request that the policy stops": picture(text),
    "a request": picture(text.replace(policy, "")),
    "something wide": text.replace("</main>", '<div style="width: 500px">wide</div></main>'),
    "pale words": text.replace("</main>", '<p style="color: #ddd; background: #fff">pale</p></main>'),
  };
  for (const [fault, content] of Object.entries(planted)) {
    const path = join(place, "fault.html");
    writeFileSync(path, content);
    const { page, context, asked, stopped, said } = await open(path, { viewport: { width: 390, height: 844 } });
    await measured(page);
    const seen = {
      "another noise": (await compare(page, one, 0)).page > NEAR,
      "a request that the policy stops": stopped.length > 0 && said.length > 0,
      "a request": asked.length > 1 + stopped.length,
      "something wide": (await page.evaluate(() => document.documentElement.scrollWidth)) > 390,
      "pale words": (await violations(page)).some(([impact]) => impact === "serious"),
    };
    const alone = Object.entries(seen).every(([name, bad]) => bad === (name === fault));
    check(`planted: ${fault} is seen, and nothing else`, content !== text && alone, JSON.stringify(seen));
    await context.close();
  }
}

async function shoot(path, file) {
  const { page, context } = await open(path);
  await measured(page);
  await page.screenshot({ path: join(place, file.replace("page-", "")), fullPage: true });
  await context.close();
}

/** The documentation's pictures of the demo's page, and the frames of its animation. */
async function take(path, count) {
  const pick = (page, index) => page.locator("#strip input").nth(index).check({ force: true });
  const settle = (page) => page.waitForTimeout(450);
  for (const [file, options, height] of [
    ["page-light.png", {}, 0],
    ["page-dark.png", { colorScheme: "dark" }, 0],
    ["page-phone.png", { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2 }, 0],
  ]) {
    const { page, context } = await open(path, options);
    await measured(page);
    await page.focus("#stop");
    for (let step = 0; step < Math.floor(count / 3); step++) await page.keyboard.press("ArrowLeft");
    await pick(page, file === "page-dark.png" ? 11 : 7);
    await page.evaluate(() => (document.activeElement.blur(), scrollTo(0, 0)));
    await settle(page);
    const stage = await page.locator(file === "page-phone.png" ? "#sight" : "#stage").boundingBox();
    const below = file === "page-phone.png" ? stage.y + stage.height : await page.evaluate(() => document.querySelector("#python").getBoundingClientRect().bottom);
    await page.screenshot({ path: join(place, file), clip: { x: 0, y: 0, width: options.viewport?.width ?? 1280, height: Math.ceil(below + 18) }, fullPage: true });
    await context.close();
  }
  const { page, context } = await open(path, { viewport: { width: 1200, height: 900 } });
  await measured(page);
  await page.focus("#stop");
  await page.keyboard.press("End");
  await page.evaluate(() => document.querySelector("#stop").style.setProperty("outline", "none"));
  const bottom = Math.ceil(await page.evaluate(() => document.querySelector("#sight").getBoundingClientRect().bottom)) + 14;
  const frames = [];
  const frame = async (ms) => {
    const file = `frame-${String(frames.length).padStart(2, "0")}.png`;
    await page.screenshot({ path: join(place, file), clip: { x: 0, y: 0, width: 1200, height: bottom }, fullPage: true });
    frames.push({ file, ms });
  };
  await pick(page, 9);
  await page.focus("#stop");
  await settle(page);
  await frame(1100);
  for (let step = 1; step < count; step++) {
    await page.keyboard.press("ArrowLeft");
    await settle(page);
    await frame(step === count - 1 ? 900 : 550);
  }
  for (let step = 1; step < count - 1; step++) {
    await page.keyboard.press("ArrowRight");
    await settle(page);
    await frame(260);
  }
  for (const picture of [7, 1, 11, 13]) {
    await pick(page, picture);
    await settle(page);
    await frame(picture > 9 ? 1300 : 800);
  }
  writeFileSync(join(place, "frames.json"), JSON.stringify(frames));
  await context.close();
}
