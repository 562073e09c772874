// Names and focus that the theme leaves out, for people who use a keyboard or a screen reader.
function mend() {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  document.querySelectorAll(".md-code__nav").forEach((nav) => nav.setAttribute("role", "presentation"))
  document.querySelectorAll("pre > code, .md-typeset__scrollwrap").forEach((scrolled) => { scrolled.tabIndex = 0 })
}
new MutationObserver(mend).observe(document.body, { childList: true, subtree: true })
mend()
