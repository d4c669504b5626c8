// Each table of class "filterable" gets a text box, and a menu for every column whose values
// repeat. Without JavaScript the table stands there whole.
"use strict";

const MOST_CHOICES = 25;

function textOf(row, column) {
  return row.cells[column].textContent.trim();
}

function labelled(caption, control) {
  const label = document.createElement("label");
  label.append(caption, " ", control);
  return label;
}

function menu(rows, column, caption) {
  const values = [...new Set(rows.map((row) => textOf(row, column)))];
  if (values.length < 2 || values.length > Math.min(MOST_CHOICES, rows.length / 3)) return null;
  const select = document.createElement("select");
  select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
  select.dataset.column = column;
  return labelled(caption, select);
}

function addFilter(table) {
  const rows = [...table.tBodies[0].rows];
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const box = document.createElement("input");
  box.type = "search";
  const menus = heads.map((head, column) => menu(rows, column, head)).filter(Boolean);
  const count = document.createElement("output");
  const form = document.createElement("form");
  form.className = "filter";
  form.append(...menus, labelled("contains", box), count);

  function update() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(
        words.every((word) => text.includes(word)) &&
        chosen.every((select) => textOf(row, select.dataset.column) === select.value)
      );
    }
    count.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  }

  form.addEventListener("input", update);
  form.addEventListener("change", update);
  form.addEventListener("submit", (event) => event.preventDefault());
  (table.closest(".table-wrapper") ?? table).before(form);
  update();
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("table.filterable").forEach(addFilter);
});
