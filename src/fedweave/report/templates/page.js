"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const stored = { get: () => { try { return localStorage.getItem("fedweave-theme"); } catch { return null; } },
                   set: (value) => { try { localStorage.setItem("fedweave-theme", value); }
                                    catch { /* private page */ } } };
  const current = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const label = () => { button.textContent = current() === "dark" ? "Light theme" : "Dark theme"; };
  const asked = new URLSearchParams(location.search).get("theme") || stored.get();
  if (asked === "dark" || asked === "light") root.dataset.theme = asked;
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = current() === "dark" ? "light" : "dark";
    stored.set(root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);
  label();

  const value = (cell) => {
    const text = cell.dataset.key ?? cell.textContent.trim().replace(/[≈?,]/g, "");
    const number = Number.parseFloat(text);
    return Number.isNaN(number) ? text : number;
  };
  const missing = (v) => v === "" || v === "nan" || v === "–" || v === "diverged";
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      if (!("sort" in head.dataset)) return;
      head.querySelector("button").addEventListener("click", () => {
        const before = head.getAttribute("aria-sort");
        const down = before ? before === "ascending" : head.dataset.sort === "down";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
        rows.sort(([a], [b]) => missing(a) - missing(b) || (down ? -1 : 1) * compare(a, b));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }

  for (const box of document.querySelectorAll(".scroll")) {
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "Scroll to the right for more columns →";
    box.before(hint);
    new ResizeObserver(() => { hint.hidden = box.scrollWidth <= box.clientWidth + 1; }).observe(box);
  }

  const pick = (series) => {
    for (const element of document.querySelectorAll("[data-series]"))
      element.classList.toggle("picked", series !== null && element.dataset.series === series);
    document.body.classList.toggle("picking", series !== null);
  };
  for (const element of document.querySelectorAll("[data-series]")) {
    element.addEventListener("pointerenter", () => pick(element.dataset.series));
    element.addEventListener("pointerleave", () => pick(null));
  }
})();
