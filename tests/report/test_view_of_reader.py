"""What a reader changes on a page: metric, theme, open sections, and links to the same view."""

HASH = "decodeURIComponent(location.hash)"
HEADING = "document.querySelector('.screen h2').textContent"
SECTION = "document.querySelector('#data ~ details')"
THEME = "document.documentElement.dataset.theme"
SHOW_AUROC = (
    "(() => { const menu = document.querySelector('.metric select'); menu.value = 'AUROC';"
    "menu.dispatchEvent(new Event('change', { bubbles: true })); })()"
)
COPIED = (
    "(() => { let text; document.execCommand = () => { text = document.activeElement.value;"
    "return true; }; navigator.clipboard.writeText = () => Promise.reject();"
    "document.querySelectorAll('.screen .saving button')[%d].click();"
    "return new Promise(done => setTimeout(() => done(text), 100)); })()"
)


def test_a_link_shows_the_metric_and_the_sections_that_the_reader_chose(browser, page):
    browser.open(page)
    assert browser.evaluate(HEADING) == "Accuracy by layer"
    browser.evaluate(SHOW_AUROC)
    browser.evaluate(f"{SECTION}.querySelector('summary').click()")
    browser.settle(500)
    link, summary = browser.evaluate(HASH), browser.evaluate(f"{SECTION}.firstElementChild.id")
    assert browser.evaluate(HEADING) == "AUROC by layer"
    axis = "document.querySelector('.screen .drawing').layout.yaxis.title.text"
    assert browser.evaluate(axis) == "AUROC"
    assert {f"toggled={summary}", "metric=AUROC"} < set(link[1:].split("&"))
    browser.open(page)
    assert browser.evaluate(HEADING) == "Accuracy by layer"
    browser.evaluate(f"location.hash = {link!r}")
    browser.reload()
    assert browser.evaluate(HEADING) == "AUROC by layer"
    assert browser.evaluate(axis) == "AUROC"
    assert browser.evaluate(f"{SECTION}.open")
    # The link to a heading leaves the rest as it is.
    browser.evaluate("location.hash = '#data'")
    browser.settle()
    assert {"at=data", f"toggled={summary}"} < set(browser.evaluate(HASH)[1:].split("&"))
    assert browser.trouble == []


def test_two_choices_of_a_metric_in_a_row_leave_each_figure_its_own_title(browser, page):
    browser.open(page)
    axis = "document.querySelector('.screen .drawing').layout.yaxis.title.text"
    browser.evaluate(f"{SHOW_AUROC}; {SHOW_AUROC.replace('AUROC', 'Accuracy')}")
    browser.settle(500)
    for metric in ("Accuracy", "AUROC", "Accuracy"):
        browser.evaluate(SHOW_AUROC.replace("AUROC", metric))
        browser.settle(500)
        assert browser.evaluate(HEADING) == f"{metric} by layer"
        assert browser.evaluate(axis).lower() == metric.lower()


def test_each_heading_has_an_id_and_wide_windows_list_the_sections(browser, page):
    browser.open(page)
    headings = "document.querySelectorAll(':is(h1, h2, h3, summary):not(.explorer *)')"
    ids = browser.evaluate(f"[...{headings}].map(one => one.id)")
    assert len(set(ids)) == len(ids)
    assert "" not in ids
    shown = "getComputedStyle(document.querySelector('.contents')).display"
    assert browser.evaluate(shown) == "flex"
    links = "[...document.querySelectorAll('.contents a')]"
    titles = browser.evaluate(f"{links}.map(a => a.textContent)")
    assert {"All sites", "Data", "How it was measured"} <= set(titles)
    browser.resize(1200)
    assert browser.evaluate(shown) == "none"


def test_the_theme_is_remembered_until_it_is_that_of_the_system_again(browser, page):
    switch = "document.querySelector('.theme').click()"
    for dark, themes in ((False, ["dark", "light"]), (True, ["light", "dark"])):
        browser.open(page, dark=dark)
        for theme in themes:
            browser.evaluate(switch)
            browser.open(page, dark=dark)
            assert browser.evaluate(THEME) == theme
    browser.open(page, dark=False)
    assert browser.evaluate(THEME) == "light"


def test_figures_and_tables_are_copied_as_numbers(browser, page):
    browser.open(page)
    figure = browser.evaluate(COPIED % 1).splitlines()
    assert figure[0] == "series,x,y,value,details"
    assert figure[1].startswith("task,embed,,0.")
    table = browser.evaluate(COPIED % 2).splitlines()
    assert table[0] == "compared with,accuracy,difference [95 %],adjusted p"
    assert browser.trouble == []
