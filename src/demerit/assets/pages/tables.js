'use strict';
/* Tables: any table marked data-sortable sorts by its headers. Missing values stay last in both directions. */

function compareValues(a, b, sign) {
  const missing = (value) => value === '' || value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  return sign * (typeof a === 'number' ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
}

/* Turns the header's mark and returns the sign to sort by; a header may name the direction to begin with. */
function turnHeader(header) {
  const first = header.dataset.first || 'ascending';
  const other = first === 'ascending' ? 'descending' : 'ascending';
  const next = header.getAttribute('aria-sort') === first ? other : first;
  for (const each of header.parentNode.children) if (each.hasAttribute('aria-sort')) each.setAttribute('aria-sort', 'none');
  header.setAttribute('aria-sort', next);
  return next === 'ascending' ? 1 : -1;
}

function cellValue(row, column) {
  const cell = row.cells[column];
  if (!cell) return '';
  if (cell.dataset.value === undefined) return cell.textContent.trim();
  return cell.dataset.value === '' || Number.isNaN(Number(cell.dataset.value)) ? cell.dataset.value : Number(cell.dataset.value);
}

for (const table of document.querySelectorAll('table[data-sortable]')) {
  for (const header of table.tHead.rows[0].cells) {
    if (!header.hasAttribute('aria-sort')) continue;
    header.querySelector('button').addEventListener('click', () => {
      const sign = turnHeader(header);
      for (const body of table.tBodies) {
        const rows = [...body.rows].sort((a, b) => compareValues(cellValue(a, header.cellIndex), cellValue(b, header.cellIndex), sign));
        body.append(...rows);
      }
    });
  }
}

for (const toggle of document.querySelectorAll('button[data-details]')) {
  toggle.addEventListener('click', () => {
    const shown = toggle.closest('.headline-box').classList.toggle('detailed');
    toggle.setAttribute('aria-pressed', String(shown));
  });
}
