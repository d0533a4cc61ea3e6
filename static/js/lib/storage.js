// localStorage that never throws: where it is refused, choices last as long as the page.
const fallback = new Map();

export function remember(key, value) {
  fallback.set(key, value);
  try {
    if (value === null) localStorage.removeItem(`meridian.${key}`);
    else localStorage.setItem(`meridian.${key}`, value);
  } catch { /* kept in memory */ }
}

export function recall(key) {
  try {
    return localStorage.getItem(`meridian.${key}`) ?? fallback.get(key) ?? null;
  } catch {
    return fallback.get(key) ?? null;
  }
}
