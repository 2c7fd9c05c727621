// Which labels have which values: the chips of what is filtered by, and the form that adds one.

import { cpu, element, printable } from "./text.js";

const FIRST = ["comm", "pid", "thread", "container", "unit"];

export class Filters {
  // `onAdd(name, value)`, `onRemove(index)`, and `onNames(names)` when other labels are known.
  constructor({ onAdd, onRemove }) {
    this.chips = document.getElementById("chips");
    this.name = document.getElementById("filter-name");
    this.value = document.getElementById("filter-value");
    this.values = document.getElementById("filter-values");
    this.labels = [];
    this.onRemove = onRemove;
    this.name.addEventListener("change", () => this.offer());
    document.getElementById("filter").addEventListener("submit", (event) => {
      event.preventDefault();
      const value = this.value.value.trim();
      if (!value) return;
      this.value.value = "";
      onAdd(this.name.value, value);
    });
  }

  // Labels that occur, the usual ones first.
  setLabels(labels) {
    this.labels = labels;
    const rank = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
    const names = labels.map(({ name }) => name).sort((one, other) => rank(one) - rank(other) || (one < other ? -1 : 1));
    fillSelect(this.name, names.map((name) => [name, shownLabel(name)]));
    this.offer();
    return names;
  }

  offer() {
    const label = this.labels.find(({ name }) => name === this.name.value);
    const options = (label?.values ?? []).map(({ value, cpu_ns }) => element("option", { value }, `${printable(value)}  ${cpu(cpu_ns)}`));
    this.values.replaceChildren(...options);
  }

  show(filters, side) {
    this.chips.replaceChildren(...filters.map(([name, value], index) => {
      const text = `${shownLabel(name)} ${printable(value)} ✕`;
      const button = element("button", { type: "button", title: "Remove this filter" }, text);
      button.setAttribute("aria-label", `Remove the filter ${shownLabel(name)} ${printable(value)}`);
      button.addEventListener("click", () => this.onRemove(index));
      return element("li", { className: side }, button);
    }));
  }
}

export function shownLabel(name) {
  return name === "comm" ? "process" : printable(name);
}

// Sets the options of a select without touching it when nothing changed, and keeps what is chosen.
export function fillSelect(select, options, chosen = select.value) {
  const known = [...select.options].map(({ value }) => value).join("\n");
  if (known !== options.map(([value]) => value).join("\n")) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}
