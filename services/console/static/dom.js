// Build elements, format values and call the server. Every text is set as text, never as markup:
// names of topics, messages and reasons come from outside.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function link(hash, text) {
  return element("a", { href: hash }, text);
}

// A column: [title, value of a row, "number" | "name" | "long" | "", what the rows are sorted by].
// A column without the last one keeps its order: its head is no button.
export function table(caption, columns, rows, empty = "none") {
  if (!rows.length) return element("p", { class: "quiet" }, `${caption}: ${empty}`);
  const body = element("tbody");
  const fill = (sorted) => body.replaceChildren(...sorted.map((row) =>
    element("tr", {}, ...columns.map(([, value, kind]) =>
      element("td", { class: kind ?? "" }, value(row) ?? "-")))));
  const heads = columns.map(([title, , kind, key]) => {
    const head = element("th", { scope: "col", class: kind === "number" ? "number" : "" });
    if (!key || rows.length < 2) {
      head.append(title);
      return head;
    }
    head.append(element("button", {
      type: "button",
      onclick: () => {
        const isRising = head.getAttribute("aria-sort") === "descending" || (kind !== "number" && !head.hasAttribute("aria-sort"));
        for (const each of heads) each.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", isRising ? "ascending" : "descending");
        const sorted = [...rows].sort((a, b) => compared(key(a), key(b)));
        fill(isRising ? sorted : sorted.reverse());
      },
    }, title));
    return head;
  });
  fill(rows);
  return element("div", { class: "wide", tabindex: 0, role: "region", "aria-label": caption },
    element("table", { "aria-label": caption }, element("thead", {}, element("tr", {}, ...heads)), body));
}

function compared(a, b) {
  if (typeof a === "string") return a.localeCompare(b);
  return (a ?? -1) - (b ?? -1);
}

// The way to a page: [[path, text], ...], the page itself last, without a path.
export function crumbs(...ways) {
  const parts = ways.flatMap(([path, text]) => path ? [link(path, text), " / "] : [element("span", { "aria-current": "page" }, text)]);
  return element("nav", { class: "crumbs", "aria-label": "The way to this page" }, ...parts);
}

export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.filter(Boolean).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value ?? "-"))));
}

export function severity(name) {
  const words = { OK: "ok", WARNING: "warning", CRITICAL: "critical", UNKNOWN: "unknown" };
  return element("span", { class: `severity ${name in words ? name : ""}` }, words[name] ?? name);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  let unit = 0;
  while (Math.round(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(unit && value < 99.95 ? 1 : 0)} ${UNITS[unit]}`;
}

const NUMBERS = new Intl.NumberFormat("en");

export function number(value) {
  return value === null || value === undefined ? "-" : NUMBERS.format(value);
}

// A number of things, such as "1 segment".
export function count(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// ISO 8601 in UTC, to the second.
export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "-";
  const made = new Date(ms);
  return Number.isNaN(made.getTime()) ? `${ms} ms` : `${made.toISOString().slice(0, 19)}Z`;
}

// A time, and how long ago that was.
export function since(ms) {
  const text = time(ms), ago = Date.now() - ms;
  return text === "-" || ago < 0 ? text : `${text} (${duration(ago < 1000 ? 0 : ago)} ago)`;
}

// What is rolled and not in the tier yet; "-" if no RLM describes it.
export function lag(bytesOf, segments) {
  if (bytesOf === null || bytesOf === undefined) return "-";
  return segments ? `${bytes(bytesOf)}, ${count(segments, "segment")}` : "none";
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "-";
  for (const [unit, size] of [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]]) {
    if (ms >= size) return `${+(ms / size).toFixed(1)} ${unit}`;
  }
  return `${ms} ms`;
}

export function limit(value, format) {
  if (value === undefined) return "not set";
  return value === "-1" ? "no limit" : format(Number(value));
}

export function retention(settings) {
  if (!settings) return "-";
  const parts = [];
  if ("retention.ms" in settings) parts.push(limit(settings["retention.ms"], duration));
  if ("retention.bytes" in settings) parts.push(limit(settings["retention.bytes"], bytes));
  return parts.join(", ") || "not set";
}

export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(key, value);
  }
  const text = query.toString();
  const answer = await fetch(`/api/${path}${text ? `?${text}` : ""}`, { signal });
  const found = await answer.json().catch(() => ({ error: `the console answered ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}
