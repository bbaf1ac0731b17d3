/* Every episode: filtered and sorted in memory, drawn fifty rows at a time. */

const CHUNK = 50;
const list = { shown: [], drawn: 0, body: byId('episodes-table').tBodies[0], scroller: byId('episodes-scroller') };

const fixed = [
  { name: 'Episode', value: (e) => e.instruction || e.id },
  { name: 'Kind of task', value: (e) => e.category || '' },
  { name: 'Outcome', value: (e) => outcome(e) },
  { name: 'Grade', value: (e) => e.grade ?? '', number: true },
];
const columns = [...fixed, ...data.models.map((model, i) => ({ name: model.name, value: (e) => e.final[i], number: true, model: i, title: `final value: ${model.range}` }))];

function outcome(episode) {
  if (episode.success === undefined) return 'unknown';
  return episode.success ? 'yes' : 'no';
}

function headerCell(column) {
  const button = make('button', { type: 'button' }, column.name);
  if (column.title) button.title = column.title;
  const header = make('th', { scope: 'col', 'aria-sort': 'none' }, button);
  if (column.number) { header.dataset.first = 'descending'; header.className = 'right'; }
  button.addEventListener('click', () => {
    const sign = turnHeader(header);
    list.shown.sort((a, b) => compareValues(column.value(data.episodes[a]), column.value(data.episodes[b]), sign));
    redraw();
  });
  return header;
}

function modelCell(episode, column) {
  const { low, high } = data.models[column.model];
  const value = episode.final[column.model];
  const reason = (episode.why || {})[column.model];
  const why = reason === undefined ? '' : data.reasons[reason];
  if (value === null) return make('td', { class: 'missing', title: why }, 'unscored', make('span', { class: 'unseen' }, `: ${why}`));
  const cell = make('td', { class: 'number', title: why && `partly unscored: ${why}` }, value.toFixed(3) + (why ? ' *' : ''));
  const familiarity = (episode.guess || {})[column.model];
  if (familiarity !== undefined) cell.append(make('span', { class: 'guess', title: `unlike everything that the model learned from: familiarity ${familiarity.toFixed(3)}` }, 'a guess'));
  cell.style.setProperty('--share', Math.min(1, Math.max(0, (value - low) / (high - low))));
  return cell;
}

function episodeRow(index) {
  const episode = data.episodes[index];
  const open = make('button', { type: 'button', class: 'open' }, episode.instruction || episode.id);
  open.addEventListener('click', () => openEpisode(index, true));
  const said = outcome(episode);
  const row = make('tr', {},
    make('td', {}, open, make('span', { class: 'id' }, episode.id + (episode.clip ? ' · video' : ''))),
    make('td', {}, episode.category || ''),
    make('td', { class: said }, { yes: '✓ success', no: '✗ failure', unknown: 'unknown' }[said]),
    make('td', { class: 'right' }, String(episode.grade ?? '')));
  for (const column of columns) if (column.model !== undefined) row.append(modelCell(episode, column));
  return row;
}

function drawMore() {
  const next = list.shown.slice(list.drawn, list.drawn + CHUNK);
  list.body.append(...next.map(episodeRow));
  list.drawn += next.length;
  list.more.hidden = list.drawn >= list.shown.length;
}

function redraw() {
  list.body.replaceChildren();
  list.drawn = 0;
  list.scroller.scrollTop = 0;
  drawMore();
  const all = data.episodes.length;
  byId('episodes-count').textContent = list.shown.length === all ? `${all} episode${all === 1 ? '' : 's'}` : `${list.shown.length} of ${all} episodes`;
}

function filter() {
  const words = byId('filter-words').value.toLowerCase().split(/\s+/).filter(Boolean);
  const category = byId('filter-category').value;
  const success = byId('filter-success').value;
  const unscored = byId('filter-unscored').checked;
  const wanted = (episode) => {
    const text = `${episode.instruction || ''} ${episode.id} ${episode.note || ''}`.toLowerCase();
    return words.every((word) => text.includes(word)) && (!category || episode.category === category)
      && (!success || outcome(episode) === success) && (!unscored || episode.why !== undefined);
  };
  list.shown = data.episodes.map((_, i) => i).filter((i) => wanted(data.episodes[i]));
  const sorted = document.querySelector('#episodes-table th:is([aria-sort=ascending], [aria-sort=descending])');
  if (sorted) {
    const sign = sorted.getAttribute('aria-sort') === 'ascending' ? 1 : -1;
    const { value } = columns[sorted.cellIndex];
    list.shown.sort((a, b) => compareValues(value(data.episodes[a]), value(data.episodes[b]), sign));
  }
  redraw();
}

byId('episodes-table').tHead.append(make('tr', {}, ...columns.map(headerCell)));
for (const name of [...new Set(data.episodes.map((e) => e.category).filter(Boolean))]) byId('filter-category').append(make('option', { value: name }, name));
list.more = make('div', { class: 'more' }, make('button', { type: 'button', class: 'quiet' }, 'Show more'));
list.more.firstChild.addEventListener('click', drawMore);
list.scroller.append(list.more);
new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) drawMore(); }, { root: list.scroller }).observe(list.more);
byId('filters').addEventListener('input', filter);
byId('filters').addEventListener('submit', (event) => event.preventDefault());
filter();

/* The page is drawn before the curves are read: headline first. */
setTimeout(() => {
  const first = document.querySelector('#picks button');
  if (data.episodes.length) openEpisode(first ? Number(first.dataset.episode) : 0);
  performance.mark('ready');
});
