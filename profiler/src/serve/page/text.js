// Numbers, times and names as text. Names come from the programs that are profiled: they only ever become text nodes,
// and what would steer a terminal or the direction of text is shown by its number.

const UNPRINTABLE = /[\p{Cc}\p{Cf}\u2028\u2029]/gu;

export function printable(name) {
  return name.replace(UNPRINTABLE, (c) => `\\u{${c.codePointAt(0).toString(16)}}`) || "[empty]";
}

export function percent(share) {
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value.toFixed(value < 10 ? 2 : 1)} %`;
}

export function cpu(ns) {
  const seconds = ns / 1e9;
  if (seconds >= 36000) return `${(seconds / 3600).toFixed(1)} h`;
  if (seconds >= 600) return `${(seconds / 60).toFixed(1)} min`;
  if (seconds >= 1) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.round(seconds * 1000)} ms`;
}

export function span(seconds) {
  if (seconds >= 5400) return `${(seconds / 3600).toFixed(1).replace(/\.0$/, "")} h`;
  if (seconds >= 90) return `${(seconds / 60).toFixed(1).replace(/\.0$/, "")} min`;
  return `${Math.round(seconds)} s`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(seconds, withSeconds = true) {
  const date = new Date(seconds * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${time}:${two(date.getSeconds())}` : time;
}

export function dateTime(seconds) {
  const date = new Date(seconds * 1000);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(seconds)}`;
}

// What dateTime writes, a time of today, "now" or "-15m"; null for anything else.
export function parseTime(text, now) {
  const trimmed = text.trim();
  if (trimmed === "now") return now;
  const ago = /^-\s*(\d+(?:\.\d+)?)\s*([smhd])$/.exec(trimmed);
  if (ago) return now - Number(ago[1]) * { s: 1, m: 60, h: 3600, d: 86400 }[ago[2]];
  const today = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(trimmed);
  const date = today ? new Date(now * 1000) : new Date(trimmed.replace(" ", "T"));
  if (today) date.setHours(Number(today[1]), Number(today[2]), Number(today[3] ?? 0), 0);
  const seconds = date.getTime() / 1000;
  return Number.isFinite(seconds) ? seconds : null;
}

// An element with properties and children; strings become text.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made && name !== "list") made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function swatch(color) {
  const made = element("i", { ariaHidden: "true" });
  made.style.background = color;
  return made;
}

const tip = document.getElementById("tip");

// Lines beside the pointer; the first one stands out.
export function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, index) => element(index === 0 ? "b" : "span", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = event.clientX + 14 + width > innerWidth;
  const below = event.clientY + 18 + height > innerHeight;
  tip.style.left = `${Math.max(4, right ? Math.min(event.clientX - width - 10, innerWidth - width - 4) : event.clientX + 14)}px`;
  tip.style.top = `${Math.max(4, below ? event.clientY - height - 10 : event.clientY + 18)}px`;
}

export function hideTip() {
  tip.hidden = true;
}
