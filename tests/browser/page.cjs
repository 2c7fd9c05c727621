// The page in headless Chromium, as a user would use it. The live test `page` starts it:
//
//     node page.cjs URL PICTURES
//
// with JITPROF_BROWSER_MODULES (playwright-core and axe-core) and JITPROF_CHROMIUM. It prints a line for each check and
// ends with 1 at the first that fails. PICTURES is a folder for screenshots.

const assert = require("node:assert/strict");
const path = require("node:path");

const modules = process.env.JITPROF_BROWSER_MODULES;
const { chromium } = require(path.join(modules, "playwright-core"));
const axePath = path.join(modules, "axe-core/axe.min.js");
const [url, pictures] = process.argv.slice(2);
const ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];

let browser;
const faults = [];

async function open(hash, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30000);
  page.on("pageerror", (error) => faults.push(`${error}`));
  page.on("console", (message) => { if (message.type() === "error") faults.push(message.text()); });
  page.on("request", (request) => { if (!request.url().startsWith(url)) faults.push(`asks elsewhere: ${request.url()}`); });
  await page.goto(`${url}/${hash}`);
  await loaded(page);
  return page;
}

// Until the flamegraph and its table show what was asked for last.
async function loaded(page) {
  await page.waitForFunction(() => !document.getElementById("flame").hasAttribute("aria-busy") && (document.querySelector("#functions tbody tr") || !document.getElementById("empty").hidden));
}

const text = (page, selector) => page.locator(selector).textContent();
const hashOf = (page) => page.evaluate(() => new URLSearchParams(location.hash.slice(1)).toString());
const share = (found) => Number(/([\d.]+) %/.exec(found)[1]);

async function check(name, what) {
  const begin = Date.now();
  await what();
  assert.deepEqual(faults, [], name);
  console.log(`ok ${name} (${Date.now() - begin} ms)`);
}

async function accessible(page, name) {
  await page.addScriptTag({ path: axePath }).catch(() => page.evaluate(require("node:fs").readFileSync(axePath, "utf8")));
  const { violations } = await page.evaluate(() => window.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const told = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html).join(" | ")}`);
  // The policy of the page refuses the script tag by which axe is tried first; that is not the page's fault.
  faults.length = 0;
  assert.deepEqual(told, [], name);
}

// Frame by frame while the pointer crosses the graph, it is zoomed and scrolled: the times between frames.
async function frameTimes(page) {
  await page.evaluate(() => {
    window.times = [];
    window.long = [];
    new PerformanceObserver((list) => window.long.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
    let last = performance.now();
    const tick = (now) => {
      window.times.push(now - last);
      last = now;
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  });
  const box = await page.locator("#flame").boundingBox();
  for (let step = 0; step < 40; step++) await page.mouse.move(box.x + 20 + step * 18, box.y + 30 + (step % 10) * 19);
  for (let step = 0; step < 10; step++) await page.mouse.wheel(0, step < 5 ? 60 : -60);
  for (const at of [0.3, 0.6, 0.5]) {
    await page.mouse.click(box.x + box.width * at, box.y + 70);
    await page.keyboard.press("Escape");
  }
  await page.fill("#search", "function");
  await page.fill("#search", "");
  const { times, long } = await page.evaluate(() => ({ times: window.times.sort((a, b) => a - b), long: window.long }));
  const at = (quantile) => times[Math.floor(times.length * quantile)].toFixed(1);
  return `${times.length} frames, median ${at(0.5)} ms, 95 % ${at(0.95)} ms, longest ${times.at(-1).toFixed(1)} ms; ${long.length} tasks over 50 ms, longest ${Math.max(0, ...long).toFixed(0)} ms`;
}

// The answer of /api/flame with this many distinct stacks of 12 frames.
function manyStacks(count) {
  const strings = [""];
  const frames = { name: [], kind: [], module: [], file: [], line: [], self: [], total: [] };
  const nodes = { depth: [], frame: [], self: [], total: [] };
  for (let index = 0; index < 4000; index++) {
    strings.push(`function_${index}`);
    for (const [column, value] of Object.entries({ name: index + 1, kind: index % 9, module: 0, file: 0, line: 0, self: 1e6, total: 1e6 })) frames[column].push(value);
  }
  for (let stack = 0; stack < count; stack++) {
    for (let depth = 0; depth < 12; depth++) {
      nodes.depth.push(depth);
      nodes.frame.push((stack * 7 + depth * 131) % 4000);
      nodes.self.push(depth === 11 ? 1e6 : 0);
      nodes.total.push(1e6);
    }
  }
  const kinds = ["thread", "kernel", "native", "inlined", "JIT", "JIT optimised *", "JIT mid +", "JIT baseline ^", "interpreted ~", "builtin", "span", "note"];
  return { cpu_ns: [count * 1e6], samples: [count], least_share: 0, kinds: kinds.map((label) => ({ label, color: "#f6d75a" })), strings, frames, nodes };
}

async function main() {
  browser = await chromium.launch({ executablePath: process.env.JITPROF_CHROMIUM, args: ARGUMENTS });
  let page = await open("#span=900");

  await check("an SVG's labels are cut in a browser as they are by the program", async () => {
    const svg = path.join(__dirname, "../../profiler/src/output/svg");
    const read = (name) => require("node:fs").readFileSync(path.join(svg, name), "utf8");
    const label = new Function(`${read("labels.js")}; return label;`)();
    const cases = JSON.parse(read("label_cases.json"));
    assert.ok(cases.length > 20);
    for (const [name, room, shown] of cases) assert.equal(label(name, room), shown, `${name} in ${room}`);
  });

  await check("it opens with a timeline, a flamegraph and a table", async () => {
    assert.match(await text(page, "#summary"), /of CPU · [\d,]+ samples/);
    await page.waitForSelector("#series button");
    assert.ok((await page.locator("#series").textContent()).includes("jitdemo"));
    await page.waitForSelector("#filter-name option[value=comm]", { state: "attached" });
  });

  await check("a drag over the timeline selects a range", async () => {
    const box = await page.locator("#timeline").boundingBox();
    await page.mouse.move(box.x + box.width - 30, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width - 2, box.y + 40, { steps: 5 });
    await page.mouse.up();
    const params = new URLSearchParams(await hashOf(page));
    assert.ok(Number(params.get("to")) > Number(params.get("from")), `${params}`);
    assert.equal(await page.getAttribute("#live", "aria-pressed"), "false");
    await loaded(page);
    await page.click("#live");
    assert.equal(await page.getAttribute("#live", "aria-pressed"), "true");
    await loaded(page);
  });

  await check("a filter shows one process, its chip takes it away", async () => {
    await page.selectOption("#filter-name", "comm");
    await page.fill("#filter-value", "jitdemo");
    await page.click("#filter button");
    await page.waitForSelector("#chips button");
    await loaded(page);
    await page.waitForFunction(() => /leaf_hot/.test(document.getElementById("functions").textContent));
  });

  await check("a search tells the share of what it finds", async () => {
    await page.keyboard.press("Escape");
    await page.locator("#functions button").first().focus();
    await page.keyboard.press("/");
    await page.keyboard.type("leaf_hot");
    const found = share(await text(page, "#found"));
    assert.ok(found > 50 && found <= 90, `${found} % of jitdemo is leaf_hot`);
    const rows = await page.locator("#functions tbody tr").allTextContents();
    assert.ok(rows.every((row) => row.includes("leaf_hot")), `${rows}`);
    await page.screenshot({ path: `${pictures}/search.png` });
    await page.keyboard.press("Escape");
    assert.equal(await text(page, "#found"), "");
  });

  await check("a click zooms, the details tell more, the path leads back", async () => {
    const box = await page.locator("#flame").boundingBox();
    await page.mouse.click(box.x + box.width / 2, box.y + 19 * 3 + 8);
    assert.ok((await page.locator("#crumbs li").count()) >= 3);
    assert.ok(await page.locator("#details dl").isVisible());
    assert.ok((await hashOf(page)).includes("zoom="));
    await page.locator("#crumbs button").first().click();
    assert.equal(await page.locator("#crumbs li").count(), 0);
    await page.click("#details-close");
    assert.equal(await page.locator("#details").isVisible(), false);
  });

  await check("a zoom moves nothing, and what was clicked stays in sight", async () => {
    // Within its panel: the legend above it may get a line more with the next refresh.
    const place = () => page.evaluate(() => document.getElementById("flame").offsetTop - document.getElementById("flame-title").offsetTop);
    const before = await place();
    const said = () => text(page, "#said");
    await page.focus("#flame");
    await page.keyboard.press("Home");
    // As deep as it goes, by the widest callee.
    for (let last = ""; last !== (await said()); await page.keyboard.press("ArrowDown")) last = await said();
    await page.keyboard.press("Enter");
    assert.ok((await page.locator("#crumbs li").count()) >= 4);
    assert.equal(await place(), before);
    const { top, bottom, row } = await page.evaluate(() => {
      const box = document.getElementById("flame");
      const row = document.querySelectorAll("#crumbs li").length - 1;
      return { top: box.scrollTop, bottom: box.scrollTop + box.clientHeight, row: row * 19 };
    });
    assert.ok(row >= top && row + 19 <= bottom, `row at ${row} of ${top} to ${bottom}`);
    await page.locator("#crumbs button").first().click();
    await page.evaluate(() => { document.getElementById("flame").scrollTop = 0; });
    await page.click("#details-close");
  });

  await check("loading is shown, and a late answer replaces nothing", async () => {
    const held = [];
    await page.route("**/api/flame?*", async (route) => {
      if (route.request().url().includes("group=unit")) await new Promise((resolve) => held.push(resolve));
      await route.continue().catch(() => {});
    });
    await page.selectOption("#group", "unit,comm");
    await page.waitForFunction(() => /loading/.test(document.getElementById("busy").textContent));
    await page.selectOption("#group", "thread");
    await loaded(page);
    assert.equal(await text(page, "#busy"), "");
    held.forEach((release) => release());
    await page.waitForTimeout(300);
    const shown = await text(page, "#functions");
    await page.unroute("**/api/flame?*");
    assert.equal(await page.inputValue("#group"), "thread");
    assert.ok(/leaf_hot/.test(shown), shown);
    await page.selectOption("#group", "comm");
    await loaded(page);
    faults.length = 0;
  });

  await check("code without a name says whose it is", async () => {
    const other = await browser.newContext();
    const view = await other.newPage();
    await view.route("**/api/flame?*", (route) => {
      const json = manyStacks(2);
      json.strings = json.strings.map((name) => name && "[JIT code without a name]");
      return route.fulfill({ json });
    });
    await view.route("**/api/unnamed?*", (route) => route.fulfill({ json: { processes: [
      { pid: 4711, comm: "node", cpu_ns: 3e9, advice: "start it with --perf-prof", runtime: "V8 11.3", why: ["no words"] },
      { pid: 4712, comm: "php", cpu_ns: 1e9, advice: null, runtime: null, why: ["not announced"] },
    ], more: 0 } }));
    await view.goto(`${url}/`);
    await loaded(view);
    await view.click("#functions tbody button");
    await view.waitForSelector("#details .needs");
    assert.match(await text(view, "#details"), /node \(4711\), 3.00 s.*--perf-prof.*V8 11.3.*no words.*php \(4712\), 1.00 s\s*without a name: not announced/s);
    // What the service itself says of the program that it profiles.
    await view.click("#naming summary");
    await view.waitForSelector("#naming table");
    assert.match(await text(view, "#naming table"), /jitdemo \(\d+\).*jitdump.*100(\.\d+)? %/s);
    await other.close();
  });

  await check("the keyboard walks, zooms and comes back", async () => {
    await page.focus("#flame");
    await page.keyboard.press("Home");
    for (const key of ["ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowUp"]) await page.keyboard.press(key);
    const said = await text(page, "#said");
    assert.match(said, /%/);
    await page.keyboard.press("Enter");
    assert.ok((await page.locator("#crumbs li").count()) >= 2, said);
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    await page.keyboard.press("Escape");
    assert.equal(await page.locator("#crumbs li").count(), 0);
    await page.focus("#timeline");
    await page.keyboard.press("ArrowLeft");
    assert.ok(new URLSearchParams(await hashOf(page)).get("from"));
    await loaded(page);
    // Back to the present, where there are samples for sure.
    await page.click("#live");
    await loaded(page);
    // Every control can be reached by Tab, and shows where the focus is.
    await page.focus("#live");
    const met = new Set();
    for (let step = 0; step < 60; step++) {
      await page.keyboard.press("Tab");
      met.add(await page.evaluate(() => document.activeElement.id));
    }
    for (const id of ["compare", "link", "span", "by", "from", "to", "timeline", "group", "view", "search", "flame"]) assert.ok(met.has(id), `Tab never comes to ${id}`);
  });

  await check("icicle and flame, by leaf, lines, groups", async () => {
    for (const id of ["view", "reverse", "lines", "merge"]) {
      await page.click(`#${id}`);
      assert.equal(await page.getAttribute(`#${id}`, "aria-pressed"), "true");
      await loaded(page);
    }
    await page.selectOption("#group", "comm,thread");
    await loaded(page);
    for (const id of ["view", "reverse", "lines", "merge"]) await page.click(`#${id}`);
    await page.selectOption("#group", "comm");
    await loaded(page);
  });

  await check("two ranges, or two selections, are compared", async () => {
    await page.click("#compare");
    await loaded(page);
    await page.check("input[name=side][value=a]");
    const side = (last) => page.evaluate((seconds) => {
      document.getElementById("from").value = `-${seconds}s`;
      document.getElementById("to").value = "now";
      document.getElementById("range").requestSubmit();
    }, last);
    await side(20);
    await loaded(page);
    await page.check("input[name=side][value=b]");
    await side(10);
    await loaded(page);
    assert.match(await text(page, "#summary"), /A .* · B /);
    assert.match(await text(page, "#kinds"), /more in B/);
    assert.match(await text(page, "#functions thead"), /Self A.*Self B.*Change/);
    await page.fill("#search", "leaf_");
    assert.match(await text(page, "#found"), /A [\d.]+ %, B [\d.]+ %/);
    await page.fill("#search", "");
    await page.screenshot({ path: `${pictures}/compare.png` });
    await accessible(page, "axe finds nothing in a comparison");
  });

  await check("a side without samples is said, and nothing is painted", async () => {
    const other = await open(`#${await hashOf(page)}&f=user:nobody-at-all`);
    assert.match(await text(other, "#empty"), /Nothing was sampled on side A /);
    assert.equal(await other.locator("#flame").isVisible(), false);
    assert.equal(await other.locator("#functions tbody tr").count(), 0);
    await other.context().close();
  });

  await check("a comparison is exported as one", async () => {
    await page.click("#export summary");
    assert.match(await text(page, "#export"), /Differential flamegraph.*Folded stacks of both.*Table of changes/s);
    await page.screenshot({ path: `${pictures}/compare-export.png` });
    await page.keyboard.press("Escape");
    const shapes = { svg: /compared with/, folded: /^\S.* \d+ \d+$/m, text: /^before .*\nafter .* samples/, pprof: /^\u001f/ };
    for (const [format, shape] of Object.entries(shapes)) {
      const href = await page.getAttribute(`#export-${format}`, "href");
      assert.equal(href.includes("b.from="), format !== "pprof", href);
      const answer = await page.request.get(url + href);
      assert.equal(answer.status(), 200, href);
      assert.match((await answer.body()).toString("latin1"), shape, href);
    }
  });

  await check("a link reproduces the view", async () => {
    const other = await open(`#${await hashOf(page)}`);
    assert.equal(await other.getAttribute("#compare", "aria-pressed"), "true");
    assert.equal(await other.locator("#chips button").count(), await page.locator("#chips button").count());
    assert.match(await text(other, "#functions thead"), /Self A/);
    await other.context().close();
  });

  await check("the exports are what they say", async () => {
    for (const [format, begin] of [["svg", "<?xml"], ["folded", "jitdemo;"], ["pprof", "\u001f"]]) {
      const href = await page.getAttribute(`#export-${format}`, "href");
      const answer = await page.request.get(url + href);
      assert.equal(answer.status(), 200, href);
      assert.ok((await answer.body()).toString("latin1").startsWith(begin), href);
    }
  });
  await page.context().close();

  for (const colorScheme of ["light", "dark"]) {
    page = await open("#span=900&f=comm:jitdemo", { colorScheme });
    await check(`axe finds nothing in ${colorScheme}`, async () => {
      await page.click("#functions tbody button");
      await page.waitForTimeout(300);
      await page.screenshot({ path: `${pictures}/${colorScheme}.png` });
      await accessible(page, colorScheme);
    });
    await page.context().close();
  }

  // To be looked at: each view at three sizes.
  for (const [size, width, height] of [["desktop", 1360, 900], ["tablet", 820, 1180], ["phone", 390, 844]]) {
    await check(`it fits ${width} pixels`, async () => {
      page = await open("#span=900", { viewport: { width, height } });
      const fits = async (view) => {
        await page.screenshot({ path: `${pictures}/${size}-${view}.png`, fullPage: true });
        const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(wide[0] <= wide[1], `${view}: ${wide}`);
      };
      await page.waitForSelector("#series button");
      await fits("all");
      await page.locator("#flame").click({ position: { x: width / 3, y: 19 * 3 + 8 } });
      await page.waitForSelector("#details dl");
      await fits("zoom");
      await page.click("#compare");
      await loaded(page);
      await fits("compare");
      await page.context().close();
    });
  }

  await check("nothing moves on a phone when the labels come", async () => {
    const context = await browser.newContext({ viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    page = await context.newPage();
    let answer;
    const held = new Promise((resolve) => { answer = resolve; });
    await page.route("**/api/labels?*", async (route) => {
      await held;
      await route.continue();
    });
    await page.goto(`${url}/#span=900`);
    await loaded(page);
    const height = () => page.evaluate(() => ["by", "filter"].map((id) => document.getElementById(id).parentElement.getBoundingClientRect().height));
    const before = await height();
    answer();
    await page.waitForSelector("#filter-name option[value=comm]", { state: "attached" });
    assert.deepEqual(await height(), before);
    await context.close();
  });

  page = await open("#span=900&f=comm:jitdemo", { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
  await check("a phone of 360 pixels shows it without scrolling sideways", async () => {
    await page.waitForSelector("#series button");
    const wide = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
    assert.ok(wide[0] <= wide[1], `${wide}`);
    // No refresh while the finger comes down: a legend that gets a line more would move the graph from under it.
    await page.route("**/api/timeline?*", () => {});
    await page.locator("#flame").tap({ position: { x: 150, y: 60 } });
    await page.waitForFunction(() => document.querySelectorAll("#crumbs li").length >= 2);
    await page.screenshot({ path: `${pictures}/phone.png` });
    await accessible(page, "axe finds nothing on a phone");
  });
  await page.context().close();

  await check("the frequency is told over time, and marked where it changed", async () => {
    const context = await browser.newContext({ viewport: { width: 1360, height: 900 } });
    page = await context.newPage();
    await page.addInitScript(() => {
      const { fillText } = CanvasRenderingContext2D.prototype;
      window.drawn = [];
      CanvasRenderingContext2D.prototype.fillText = function (text, x, ...more) {
        if (/ Hz$/.test(text)) window.drawn.push([text, x]);
        return fillText.call(this, text, x, ...more);
      };
    });
    await page.goto(`${url}/#span=900`);
    await loaded(page);
    assert.match(await text(page, "#summary"), / samples at \d+ (to \d+ )?Hz/, "what the service says");
    // The governor lowers it when it will; here it does so within the range that is shown.
    await page.route("**/api/timeline?*", async (route) => {
      const response = await route.fetch();
      const json = await response.json();
      const changed = json.from + json.step * json.series[0].cpu_ns.length * 0.9;
      await route.fulfill({ response, json: { ...json, frequencies: [[json.from - 60, 97], [changed, 19]] } });
    });
    await page.reload();
    await loaded(page);
    assert.match(await text(page, "#summary"), / samples at 19 to 97 Hz/);
    const box = await page.locator("#timeline").boundingBox();
    const drawn = await page.evaluate(() => Object.fromEntries(window.drawn));
    assert.deepEqual(Object.keys(drawn).sort(), ["19 Hz", "97 Hz"]);
    assert.ok(drawn["97 Hz"] < box.width * 0.2 && Math.abs(drawn["19 Hz"] / box.width - 0.9) < 0.05, JSON.stringify(drawn));
    for (const [at, hertz] of [[0.25, 97], [0.97, 19]]) {
      await page.mouse.move(box.x + box.width * at, box.y + 40);
      assert.match(await text(page, ".tip"), new RegExp(`sampled at ${hertz} Hz`));
    }
    await context.close();
  });

  await check("hostile names are text", async () => {
    const context = await browser.newContext();
    page = await context.newPage();
    const hostile = '<img src=x onerror="window.pwned=1">\u202e"\'`';
    await page.route("**/api/flame?*", (route) => {
      const json = manyStacks(3);
      json.strings = json.strings.map((name) => name && hostile + name);
      return route.fulfill({ json });
    });
    await page.route("**/api/timeline?*", (route) => route.fulfill({ json: { from: Date.now() / 1000 - 900, step: 90, by: "comm", series: [{ value: hostile, cpu_ns: Array(10).fill(1e9) }], rest: null } }));
    await page.route("**/api/lines?*", (route) => route.fulfill({ json: { lines: [{ file: hostile, line: 1, module: hostile, self: 1, total: 1 }], more: 0 } }));
    await page.goto(`${url}/#q=${encodeURIComponent(hostile)}&f=comm:${encodeURIComponent(hostile)}`);
    await loaded(page);
    await page.click("#functions tbody button");
    await page.waitForSelector("#details .inner");
    assert.equal(await page.evaluate(() => window.pwned ?? document.querySelectorAll("main img").length), 0);
    assert.ok((await text(page, "#functions")).includes("\\u{202e}"), "marks of direction are shown by number");
    await context.close();
  });

  await check("ten thousand stacks are drawn without lag", async () => {
    const context = await browser.newContext({ viewport: { width: 1360, height: 900 } });
    page = await context.newPage();
    const json = manyStacks(10000);
    await page.route("**/api/flame?*", (route) => route.fulfill({ json }));
    await page.goto(`${url}/`);
    await loaded(page);
    console.log(`   ${await frameTimes(page)}`);
    await context.close();
  });

  await browser.close();
}

main().catch(async (error) => {
  console.error(error);
  console.error(faults.join("\n"));
  await browser?.close();
  process.exit(1);
});
