// Build elements, format values and ask the server. Every text is set as text, never as markup:
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

// A column: [title, value of a row, "number" | "name" | "long" | ""].
export function table(caption, columns, rows, empty = "none") {
  if (!rows.length) return element("p", { class: "quiet" }, `${caption}: ${empty}`);
  const head = columns.map(([title, , kind]) =>
    element("th", { scope: "col", class: kind === "number" ? "number" : "" }, title));
  const body = rows.map((row) =>
    element("tr", {}, ...columns.map(([, value, kind]) => {
      const cell = value(row);
      return element("td", { class: kind ?? "" }, cell ?? "-");
    })));
  return element("div", { class: "wide" },
    element("table", { "aria-label": caption },
      element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)));
}

export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.filter(Boolean).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value ?? "-"))));
}

export function severity(name) {
  const words = { OK: "ok", WARNING: "warning", CRITICAL: "critical" };
  return element("span", { class: `severity ${name in words ? name : ""}` }, words[name] ?? name);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value) {
  if (value === null || value === undefined) return "-";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${UNITS[unit]}`;
}

const NUMBERS = new Intl.NumberFormat("en");

export function number(value) {
  return value === null || value === undefined ? "-" : NUMBERS.format(value);
}

export function time(ms) {
  if (ms === null || ms === undefined || ms < 0) return "-";
  const made = new Date(ms);
  return Number.isNaN(made.getTime()) ? `${ms} ms` : made.toISOString().replace("T", " ").replace(".000Z", "Z");
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
