// What a browser adds to the page: local times and countdowns, and the live part. Everything works without it.
(() => {
  'use strict';
  const root = document.documentElement;
  root.classList.add('js');

  // Times. The server writes UTC; here they become local, and those that are near are counted.
  let ahead = Date.parse(root.dataset.now) - Date.now(); // of the server's clock before this one
  if (!(Math.abs(ahead) > 2000)) ahead = 0; // the way here takes some of it
  const sameDay = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit' });
  const otherDay = new Intl.DateTimeFormat(undefined, { day: 'numeric', month: 'short', hour: '2-digit', minute: '2-digit', second: '2-digit' });
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: 'full', timeStyle: 'long' });

  function clock(at) {
    return (at.toDateString() === new Date().toDateString() ? sameDay : otherDay).format(at);
  }
  function span(ms) {
    const s = Math.round(Math.abs(ms) / 1000);
    if (s < 120) return s + ' s';
    if (s < 7200) return Math.floor(s / 60) + ' min ' + (s < 600 ? (s % 60) + ' s' : '');
    if (s < 172800) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
    return Math.round(s / 86400) + ' days';
  }
  function words(el, at) {
    const left = at - (Date.now() + ahead);
    if ('in' in el.dataset) return clock(at) + ' · ' + (left > 0 ? 'in ' + span(left).trim() : 'now');
    if ('for' in el.dataset) return span(left).trim();
    if ('ago' in el.dataset) return (el.dataset.ago === 'short' ? '' : clock(at) + ' · ') + (left < 0 ? span(left).trim() + ' ago' : 'now');
    return clock(at);
  }
  const short = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit' });
  function tell(within) {
    for (const el of within.querySelectorAll('text[data-clock]')) {
      const text = short.format(new Date(el.dataset.clock));
      if (el.textContent !== text) el.textContent = text;
    }
    for (const el of within.querySelectorAll('time[datetime]')) {
      const at = new Date(el.getAttribute('datetime'));
      if (isNaN(at)) continue;
      const text = words(el, at);
      if (el.textContent !== text) el.textContent = text;
      if (!el.title) el.title = full.format(at);
    }
  }
  tell(document);
  setInterval(() => tell(document), 1000);

  // Boxes that choose all the others of their form.
  document.addEventListener('change', (e) => {
    const all = e.target.closest('[data-all]');
    if (!all) return;
    for (const box of document.querySelectorAll('input[type=checkbox][name="' + CSS.escape(all.dataset.all) + '"]')) box.checked = all.checked;
  });

  // The live part.
  const live = document.getElementById('live');
  const status = document.getElementById('status');
  if (!live || !status) return;
  const said = document.getElementById('said');
  const hold = document.getElementById('hold');
  const show = (kind, text) => {
    status.className = 'status needs-js ' + kind;
    document.getElementById('status-text').textContent = text;
  };

  const key = (n) => (n.nodeType === 1 ? n.id || n.dataset.key || null : null);
  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);

  // morph makes a node like another with as few changes as possible, so that focus, marks and scrolling stay. While a control in a
  // list has the focus, or the mouse is held down, its rows change and do not move.
  function morph(from, to) {
    if (from.nodeType !== 1) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    for (const { name, value } of [...to.attributes]) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    for (const { name } of [...from.attributes]) {
      if (!to.hasAttribute(name) && !(name === 'open' && from.nodeName === 'DETAILS') && name !== 'title') from.removeAttribute(name);
    }
    if (from.nodeName === 'INPUT' || from.nodeName === 'TEXTAREA' || from.nodeName === 'SELECT') return; // what was typed stays
    const keyed = [...to.children].some((c) => c.dataset && c.dataset.key);
    if (keyed && (from.contains(document.activeElement) || pressed)) {
      for (const old of from.children) {
        const one = [...to.children].find((c) => key(c) === key(old));
        if (one) morph(old, one);
      }
      return;
    }
    const byKey = new Map();
    for (const old of from.childNodes) if (key(old)) byKey.set(key(old), old);
    let at = from.firstChild;
    for (const one of [...to.childNodes]) {
      const same = key(one) ? byKey.get(key(one)) : at && alike(at, one) ? at : null;
      if (same && same.nodeName === one.nodeName) {
        if (same !== at) from.insertBefore(same, at); else at = at.nextSibling;
        morph(same, one);
      } else {
        from.insertBefore(one, at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }
  let pressed = false;
  document.addEventListener('pointerdown', () => { pressed = true; });
  for (const over of ['pointerup', 'pointercancel', 'blur']) window.addEventListener(over, () => { pressed = false; });

  // Only what changes its state is said aloud.
  const states = () => new Map([...live.querySelectorAll('[data-key]')].map((row) => [row.dataset.key, row.querySelector('.chip')?.textContent]));
  function announce(before) {
    const changed = [...states()].filter(([k, v]) => before.has(k) && v && before.get(k) !== v);
    if (changed.length) said.textContent = changed.slice(0, 3).map(([k, v]) => k + ': ' + v).join(', ') + (changed.length > 3 ? ' and ' + (changed.length - 3) + ' more' : '');
  }

  let source = null, held = false;
  function take(html) {
    const made = document.createElement('div');
    made.innerHTML = html;
    tell(made);
    const before = states();
    const next = live.cloneNode(false);
    next.append(...made.childNodes);
    morph(live, next);
    announce(before);
  }
  function open() {
    if (source || held || document.hidden) return;
    source = new EventSource(status.dataset.live);
    source.addEventListener('html', (e) => take(e.data));
    source.addEventListener('at', (e) => show('on', 'live, ' + clock(new Date(e.data))));
    source.addEventListener('stale', (e) => show('off', 'Redis does not answer; as of ' + clock(new Date(e.data))));
    source.addEventListener('bye', () => { close(); show('off', 'not live any more: read the page again'); });
    source.addEventListener('again', () => { close(); open(); });
    source.onerror = () => {
      if (source && source.readyState === EventSource.CLOSED) { source = null; setTimeout(open, 5000); }
      show('off', 'no answer; trying again');
    };
  }
  function close() {
    if (source) source.close();
    source = null;
  }
  hold.addEventListener('click', () => {
    held = !held;
    hold.setAttribute('aria-pressed', String(held));
    hold.textContent = held ? 'Go on' : 'Pause updates';
    if (held) { close(); show('off', 'updates are paused'); } else { show('', 'connecting'); open(); }
  });
  document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
  window.addEventListener('pagehide', close);
  window.addEventListener('pageshow', open);
  open();
})();
