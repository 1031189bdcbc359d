// What htmx does not do: times in the reader's zone, sorted tables, plots, and copying.
"use strict";

const zoned = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

function all(selector, act) {
  document.querySelectorAll(selector).forEach(act);
}

// Tables. A column that was chosen stays so when the page is refreshed.
const sorted = new Map();

function valueOf(row, column) {
  const cell = row.cells[column];
  return cell ? (cell.dataset.value ?? cell.textContent.trim()) : "";
}

function compare(one, other) {
  if (one === "" || other === "") return (one === "") - (other === "");
  const difference = Number(one) - Number(other);
  return Number.isNaN(difference) ? one.localeCompare(other) : difference;
}

function sort(table) {
  const [column, direction] = sorted.get(table.id) ?? [];
  if (column === undefined) return;
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const ordered = [...rows].sort(
    (one, other) => direction * compare(valueOf(one, column), valueOf(other, column)),
  );
  if (ordered.some((row, place) => row !== rows[place])) body.append(...ordered);
  [...table.tHead.rows[0].cells].forEach((head, place) => {
    if (place === column) head.ariaSort = direction > 0 ? "ascending" : "descending";
    else head.removeAttribute("aria-sort");
  });
}

// Plots: of a document that is fetched, or of samples taken while the page is open, after those of
// a document of the past.
const colors = ["--link", "--warn", "--text", "--soft"];
const ticks = [
  [60, new Intl.DateTimeFormat(undefined, { timeStyle: "medium" })],
  [21_600, new Intl.DateTimeFormat(undefined, { timeStyle: "short" })],
  [Infinity, new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit" })],
];
const plots = new WeakMap();
const samples = new Map();

function resolved(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function draw(element, names, data) {
  plots.get(element)?.destroy();
  element.replaceChildren();
  const axis = { stroke: resolved("--text"), grid: { stroke: resolved("--line"), width: 1 } };
  const labels = (plot, splits, place, space, step) => {
    const [, format] = ticks.find(([length]) => step < length);
    return splits.map((second) => format.format(second * 1000));
  };
  const options = {
    title: element.dataset.label,
    width: Math.max(element.clientWidth, 280),
    height: 240,
    scales: { y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
    axes: [{ ...axis, values: labels, space: 90 }, { ...axis, size: 70 }],
    series: [
      { value: (_, second) => (second === null ? "—" : zoned.format(second * 1000)) },
      ...names.map((label, place) => ({
        label,
        stroke: resolved(colors[place % colors.length]),
        width: 2,
        points: { show: data[0].length < 3 },
      })),
    ],
  };
  plots.set(element, new uPlot(options, data, element));
  element.setAttribute("role", "img");
  const last = names.map((name, place) => `${name} ${data[place + 1].at(-1) ?? "unknown"}`);
  element.setAttribute("aria-label", `${element.dataset.label}: now ${last.join(", ")}`);
}

async function fetchPlot(element) {
  const answer = await fetch(element.dataset.source);
  if (!answer.ok) {
    element.textContent = "This cannot be plotted now.";
    return;
  }
  const found = await answer.json();
  draw(element, ["events a second"], [found.times, found.rates]);
}

// Adds up the sampled numbers of a table's rows by their names.
function sample(element) {
  const table = document.querySelector(element.dataset.sample);
  if (!table) return;
  const found = new Map();
  for (const row of table.tBodies[0].rows) {
    const cell = row.querySelector("[data-sampled]");
    const name = row.dataset.name ?? row.cells[0].textContent.trim();
    if (cell && cell.dataset.value !== "") {
      found.set(name, (found.get(name) ?? 0) + Number(cell.dataset.value));
    }
  }
  const kept = samples.get(element.id) ?? { times: [], values: [] };
  kept.times.push(Date.now() / 1000);
  kept.values.push(found);
  if (kept.times.length > 1000) {
    kept.times.shift();
    kept.values.shift();
  }
  samples.set(element.id, kept);
  if (kept.times.length < 2) {
    element.textContent = "The plot begins with the next refresh.";
    return;
  }
  const names = [...new Set(kept.values.flatMap((one) => [...one.keys()]))].slice(0, 20);
  const series = names.map((name) => kept.values.map((one) => one.get(name) ?? null));
  draw(element, names, [kept.times, ...series]);
}

// Puts what the feed knows of the past before the samples.
async function fetchPast(element) {
  const answer = await fetch(element.dataset.past);
  if (!answer.ok) return;
  const { times, lags } = await answer.json();
  const kept = samples.get(element.id);
  if (!kept || times.length === 0) return;
  kept.times.unshift(...times);
  kept.values.unshift(
    ...times.map((_, place) => {
      const found = Object.entries(lags).map(([name, values]) => [name, values[place]]);
      return new Map(found.filter(([, lag]) => lag !== null));
    }),
  );
  sample(element);
}

// Programs know a feed by the address at which this browser has found the console.
function address(element) {
  if (!element.dataset.here) return;
  const here = new URL(element.dataset.here, location.href).href.replace(/\/$/, "");
  element.textContent = element.textContent.replaceAll(element.dataset.url, here);
  delete element.dataset.here;
}

function localize(element) {
  const moment = new Date(element.dateTime);
  element.textContent = zoned.format(moment);
  element.title = `${moment.toISOString()} (${Intl.DateTimeFormat().resolvedOptions().timeZone})`;
}

const NEWEST = 500;

function prepare() {
  all("time[datetime]", localize);
  all("table[id]", sort);
  all("[data-here]", address);
  all(".plot[data-sample]", sample);
  all("[role=log] > .event", (event, place) => place >= NEWEST && event.remove());
}

document.addEventListener("click", async (event) => {
  const head = event.target.closest("button.sort")?.closest("th");
  if (head) {
    const table = head.closest("table");
    const ascending = head.ariaSort === "ascending";
    sorted.set(table.id, [head.cellIndex, ascending ? -1 : 1]);
    sort(table);
  }
  const copy = event.target.closest("button.copy");
  if (copy) {
    await navigator.clipboard.writeText(copy.parentElement.querySelector("code").textContent);
    copy.textContent = "Copied";
  }
  if (event.target.matches("input[data-all]")) {
    all("input[name=id]", (box) => (box.checked = event.target.checked));
  }
});

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  const moment = form.querySelector("input[type=datetime-local]");
  const zone = form.querySelector("input[name=zone]");
  if (moment?.value && zone) zone.value = -new Date(moment.value).getTimezoneOffset();
  if (form.method === "get") {
    for (const input of form.elements) {
      if (input.name && input.value === "") input.disabled = true;
    }
  }
});

// Nobody looks at a hidden page, so it asks for nothing; what is being chosen stays.
document.addEventListener("htmx:before:request", (event) => {
  const { sourceEvent, sourceElement } = event.detail.ctx;
  const isChosen = sourceElement.querySelector("input:checked") !== null;
  if (sourceEvent?.type === "every" && (document.hidden || isChosen)) event.preventDefault();
});

function connected(text) {
  document.getElementById("connection").textContent = text;
}

document.addEventListener("htmx:error", () => connected("The server does not answer; trying again."));
document.addEventListener("htmx:response:error", () => connected("The last refresh was refused."));
document.addEventListener("htmx:after:swap", () => {
  connected("");
  prepare();
});

document.addEventListener("DOMContentLoaded", () => {
  prepare();
  all(".plot[data-source]", fetchPlot);
  all(".plot[data-past]", fetchPast);
  const refresh = () => {
    if (!document.hidden) all(".plot[data-source]", fetchPlot);
  };
  setInterval(refresh, 30_000);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
});
