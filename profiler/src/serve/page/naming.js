// What names each process' generated code, since it began.

import { tableOf } from "./details.js";
import { element, percent, printable } from "./text.js";

// How a source of names is called here; the keys are those of the account.
const SOURCES = { runtime: "its own tables", jitdump: "jitdump", perf_map: "perf map", peeked: "jitdump, from memory" };

export class Naming {
  // `getStatus()` asks the service, while the section is open.
  constructor(section, { getStatus }) {
    Object.assign(this, { section, getStatus });
    section.addEventListener("toggle", () => this.load());
  }

  async load() {
    if (!this.section.open) return;
    const asked = (this.asked = {});
    const status = await this.getStatus().catch(() => null);
    if (this.asked === asked && status) this.show(status.naming);
  }

  show(processes) {
    const rows = processes.map(({ pid, comm, runtime, named, unnamed }) => {
      const sources = Object.entries(named).filter(([, frames]) => frames).sort((one, other) => other[1] - one[1]);
      const reasons = Object.entries(unnamed).filter(([, frames]) => frames).sort((one, other) => other[1] - one[1]);
      const sum = (counts) => counts.reduce((whole, [, frames]) => whole + frames, 0);
      const [known, unknown] = [sum(sources), sum(reasons)];
      const share = known + unknown ? percent(known / (known + unknown)) : "";
      const by = sources.map(([name]) => SOURCES[name] ?? printable(name)).join(", ");
      const cell = (text, lines) => element("td", { className: "text" }, text, ...lines.map((line) => element("div", { className: "muted" }, line)));
      return element("tr", {}, cell(`${printable(comm)} (${pid})`, runtime ? [printable(runtime)] : []),
        cell(by || "nothing", reasons.map(([reason, frames]) => `${frames} without: ${printable(reason)}`)), element("td", {}, share));
    });
    const body = rows.length ? tableOf("What names generated code", ["Process", "Named by", "Named"], rows)
      : element("p", { className: "muted" }, "No process has run generated code yet.");
    this.section.lastElementChild.replaceChildren(body);
  }
}
