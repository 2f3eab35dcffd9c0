package browser

import (
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/redis/go-redis/v9"

	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/page"
)

func TestMain(m *testing.M) {
	code := redistest.Main(m)
	closeBrowser()
	os.Exit(code)
}

//go:embed testdata/axe.min.js
var axe string

//go:embed testdata/SHA256SUMS
var sums string

// What stands in testdata is what was published.
func TestAxeIsAsPublished(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(axe))
	if want, _, _ := strings.Cut(sums, " "); hex.EncodeToString(sum[:]) != want {
		t.Errorf("axe.min.js is %x, want %s", sum, want)
	}
}

// screens are all of them, by the name of their picture.
var screens = []struct{ name, path string }{
	{"overview", "/"},
	{"scope", "/scope?scope=payments/acme"},
	{"provider", "/scope?scope=payments"},
	{"waiters", "/waiters?scope=payments/acme"},
	{"task", "/task?id=acme-150"},
	{"drain", "/drain?scope=mail"},
	{"history", "/history"},
	{"limits", "/limits"},
	{"failures", "/failures"},
	{"workers", "/workers"},
	{"forecast", "/forecast?batch=" + url.QueryEscape(batch())},
	{"change", "/change?verb=set&scope=payments/acme&rule=tenant"},
	{"preview", "/change?verb=rollback&version=1"},
	{"error", "/task?id=none"},
}

// batch is some lines of tasks that are not enqueued.
func batch() (lines string) {
	for i, scope := range []string{"payments/acme", "payments/acme", "payments/globex", "search", "maps", "sms", "payments/acme", "mail"} {
		lines += fmt.Sprintf("{\"type\":\"charge\",\"id\":\"next-%d\",\"scope\":%q}\n", i, scope)
	}
	return lines
}

// violation is what axe found.
type violation struct {
	ID, Help string
	Nodes    []struct{ HTML, FailureSummary string }
}

// No screen, light or dark, wide or on a phone, violates axe's rules or the page's policy, has an error in a script, or is too wide.
func TestScreens(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(rdb *redis.Client, p *policy.Policy) { changes(t, rdb, p) })
	s.day()
	s.fill()
	s.behind()
	s.archived()
	for _, look := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1280, 900}, {"dark", "dark", 1280, 900}, {"phone", "light", 390, 844}} {
		ctx := tab(t)
		faults := listen(t, ctx)
		do(t, ctx, tell(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: look.width, Height: look.height, DeviceScaleFactor: 1, Mobile: look.width < 600}),
			tell(emulation.SetLocaleOverride, emulation.SetLocaleOverrideParams{Locale: "en-GB"}),
			tell(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: look.scheme}}}))
		for _, screen := range screens {
			do(t, ctx, chromedp.Navigate(s.url+screen.path), visible("#main"))
			if wide := eval[int64](t, ctx, `document.documentElement.scrollWidth`); wide > look.width {
				t.Errorf("%s, %s: it is %d wide, and the screen %d", screen.name, look.name, wide, look.width)
			}
			cut := eval[[]string](t, ctx, `[...document.querySelectorAll('.scroll:not(.tall)')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.getAttribute('aria-label') || e.className)`)
			if look.width < 600 && len(cut) > 0 {
				t.Errorf("%s, %s: cut off: %q", screen.name, look.name, cut)
			}
			s.picture(ctx, screen.name, look.name)
			if look.width < 600 { // the rules are those of the other two
				continue
			}
			eval[int](t, ctx, axe+";0")
			found := eval[[]violation](t, ctx, `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => (
				{ID: v.id, Help: v.help, Nodes: v.nodes.slice(0, 3).map(n => ({HTML: n.html, FailureSummary: n.failureSummary}))})))`)
			if len(found) > 0 {
				text, _ := json.MarshalIndent(found, "", " ")
				t.Errorf("%s, %s: %s", screen.name, look.name, text)
			}
		}
		if said := faults(); len(said) > 0 {
			t.Errorf("%s: the browser says %q", look.name, said)
		}
	}
}

// listen notes what the browser complains of: errors of scripts, and what the page's policy forbids.
func listen(t *testing.T, ctx context.Context) (faults func() []string) {
	t.Helper()
	var mu sync.Mutex
	var said []string
	do(t, ctx, chromedp.Func(func(_ context.Context, target *chromedp.Target) error {
		entries, thrown := cdp.Events(ctx, target, log.EntryAdded), cdp.Events(ctx, target, runtime.ExceptionThrown)
		note := func(text string) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, text)
		}
		go func() {
			for e, err := range entries {
				if err == nil && e.Entry.Level == "error" && !strings.Contains(e.Entry.Text, "404") {
					note(e.Entry.Text)
				}
			}
		}()
		go func() {
			for e, err := range thrown {
				if err == nil {
					note(e.ExceptionDetails.Text)
				}
			}
		}()
		return nil
	}), tell(log.Enable, cdp.Empty{}), tell(runtime.Enable, cdp.Empty{}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return said
	}
}

// picture keeps a picture of a screen if HEADWAY_PICTURES names a directory: of phones and the dark only some.
func (s *site) picture(ctx context.Context, name, look string) {
	s.t.Helper()
	dir := os.Getenv("HEADWAY_PICTURES")
	if dir == "" || look != "light" && name != "overview" && name != "scope" {
		return
	}
	if look != "light" {
		name += "-" + look
	}
	shot := chromedp.CaptureScreenshot()
	if strings.HasPrefix(name, "scope") {
		shot = chromedp.FullScreenshot(100)
	}
	png, err := chromedp.Run(ctx, shot)
	must(s.t, err)
	if err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil { //nolint:gosec // a picture for the docs
		s.t.Fatal(err)
	}
}

// The figures change by themselves, and not while updates are paused; a row does not move while a control in it has the focus.
func TestLive(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fill()
	ctx := tab(t)
	text := func(selector string) string {
		return eval[string](t, ctx, "document.querySelector('"+selector+"')?.textContent ?? ''")
	}
	const row = `[data-key="search"] .chip`
	do(t, ctx, chromedp.Navigate(s.url+"/"), visible(row))
	redistest.WaitAsking(t, "the page to be live", 15*time.Second, func() bool { return strings.HasPrefix(text("#status-text"), "live") })
	do(t, ctx, chromedp.Focus(chromedp.CSS(`[data-key="search"] a`)))
	const keys = `[...document.querySelectorAll("tbody tr")].map(r => r.dataset.key).join()`
	order := eval[string](t, ctx, keys)
	_, err := s.store.Pause(t.Context(), policystore.Edit{By: "anna"}, "search")
	must(t, err)
	redistest.WaitAsking(t, "the pause to be shown", 15*time.Second, func() bool { return text(row) == "Paused" })
	later := eval[string](t, ctx, keys)
	if order != later {
		t.Errorf("the rows moved under the focus: %s, then %s", order, later)
	}
	if said := text("#said"); !strings.Contains(said, "search: Paused") {
		t.Errorf("a screen reader says %q", said)
	}
	eval[int](t, ctx, `document.activeElement.blur(), 0`)
	redistest.WaitAsking(t, "the row to move", 15*time.Second, func() bool {
		return eval[string](t, ctx, keys) != order
	})
	do(t, ctx, click("#hold"))
	_, err = s.store.Resume(t.Context(), policystore.Edit{By: "anna"}, "search")
	must(t, err)
	eval[int](t, ctx, `new Promise(r => setTimeout(() => r(0), 2500))`)
	if got := text(row); got != "Paused" {
		t.Errorf("while updates are paused the row says %q", got)
	}
	do(t, ctx, click("#hold"))
	redistest.WaitAsking(t, "the end of the pause to be shown", 15*time.Second, func() bool { return text(row) != "Paused" })
}

// A change is made and undone by keyboard alone, from the first tab stop on.
func TestByKeyboard(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := tab(t)
	focus := func() string {
		return eval[string](t, ctx, `document.activeElement.textContent.trim() || document.activeElement.id`)
	}
	// to presses Tab until something with a text has the focus.
	to := func(want string) {
		t.Helper()
		var seen []string
		for range 60 {
			do(t, ctx, chromedp.KeyEvent(kb.Tab))
			got := focus()
			if seen = append(seen, got); got == want {
				return
			}
		}
		t.Fatalf("Tab never comes to %q, but to %q", want, seen)
	}
	do(t, ctx, chromedp.Navigate(s.url+"/scope?scope=search"), visible("#main"))
	do(t, ctx, chromedp.KeyEvent(kb.Tab))
	if got := focus(); got != "Skip to the content" {
		t.Errorf("the first stop is %q", got)
	}
	to("Pause…")
	do(t, ctx, chromedp.KeyEvent(kb.Enter), visible("#reason"))
	to("reason")
	do(t, ctx, chromedp.KeyEvent("by keyboard"))
	to("See what it would do")
	do(t, ctx, chromedp.KeyEvent(kb.Enter), visible("button.danger"))
	to("Pause it")
	do(t, ctx, chromedp.KeyEvent(kb.Enter), visible(".note.green"))
	v, err := s.store.Current(t.Context())
	if err != nil || v.By != "anna" || v.Reason != "by keyboard" || len(v.Overrides) != 1 {
		t.Errorf("%+v, %v", v, err)
	}
	to("Undo")
	do(t, ctx, chromedp.KeyEvent(kb.Enter), chromedp.WaitNotPresent(`//*[contains(text(), "Done: version 2")]`), visible(".note.green"))
	if v, err = s.store.Current(t.Context()); err != nil || v.Number != 3 || len(v.Overrides) != 0 {
		t.Errorf("after the undo: %+v, %v", v, err)
	}
}

// Everything works without JavaScript, except to choose all tasks of a page at once.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fill()
	ctx := tab(t)
	do(t, ctx, tell(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}))
	for _, screen := range screens {
		do(t, ctx, chromedp.Navigate(s.url+screen.path), visible("#main h1"))
	}
	do(t, ctx, chromedp.Navigate(s.url+"/change?verb=set&scope=search&rule=plan"), chromedp.SendKeys(chromedp.CSS("#f-limit"), "7"),
		click("form.fields button.main"), visible(".diff ins"),
		click("button[value=make]"), visible(".note.green"))
	p, err := s.store.Now(t.Context())
	must(t, err)
	if _, tree := p.Limits(); tree["search"].Rules[0].Limit != 7 {
		t.Errorf("%+v", tree["search"])
	}
	do(t, ctx, chromedp.Navigate(s.url+"/waiters?scope=legacy"), click(`input[name=task]`), click(`button[value=cancel]`), visible("button.danger"),
		click("button.danger"), visible(".note.green"))
	do(t, ctx, tell(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{}), chromedp.Navigate(s.url+"/waiters?scope=legacy"), visible("#every"))
	if n := eval[int](t, ctx, `document.querySelectorAll("input[name=task]").length`); n != 6 {
		t.Errorf("%d tasks wait, and one of 7 was cancelled", n)
	}
	do(t, ctx, click("#every"))
	if n := eval[int](t, ctx, `document.querySelectorAll("input[name=task]:checked").length`); n != 6 {
		t.Errorf("%d tasks are chosen of 6", n)
	}
	do(t, ctx, click(`button[value=priority]`), visible("#priority"))
	if text := eval[string](t, ctx, `document.querySelector("#main").textContent`); !strings.Contains(text, "6 chosen tasks") {
		t.Errorf("it says %s", text)
	}
}

// BenchmarkFirstPaint reports how long the overview of a new page takes to its first paint, in a tab that has loaded nothing of it.
func BenchmarkFirstPaint(b *testing.B) {
	s := newSite(b)
	s.fill()
	var paints []float64
	for b.Loop() {
		handler, err := page.New(page.Config{Redis: s.rdb, Local: "anna"})
		must(b, err)
		front := httptest.NewServer(handler) // another port, and so nothing of the cache
		ctx := tab(b)
		do(b, ctx, chromedp.Navigate(front.URL+"/"))
		paints = append(paints, eval[float64](b, ctx, `new Promise(done => new PerformanceObserver(list => {
			for (const e of list.getEntriesByName("first-contentful-paint")) done(e.startTime)
		}).observe({type: "paint", buffered: true}))`))
		must(b, chromedp.Cancel(ctx))
		front.CloseClientConnections() // the stream of the page
		front.Close()
	}
	slices.Sort(paints)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(paints[len(paints)/2], "paint-ms")
	b.ReportMetric(paints[len(paints)-1], "worst-paint-ms")
}

// Each change of the limits can be made from the screen that offers it, and the next screen says what was changed.
func TestEachChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := tab(t)
	const scope, plan = "/scope?scope=search", "/change?verb=set&scope=search&rule=plan"
	const imported = "limits: {search: {rules: [{name: plan, algorithm: fixed-window, limit: 9, per: 1h}]}}"
	for _, step := range []struct {
		what, from, link string
		fields           [][2]string // selector and value
		says             string      // the screen that follows
	}{
		{"pause for a time", scope, "verb=pause", [][2]string{{"#for", "2h"}}, "<ins>search paused until "},
		{"resume", scope, "verb=resume", nil, "<del>search paused"},
		{"drain", scope, "verb=drain", nil, "No task of search runs"},
		{"resume what was drained", "", "verb=resume", nil, "<del>search paused"},
		{"set a rule for a time", scope, "rule=plan", [][2]string{{"#f-limit", "500"}, {"#for", "1h"}}, "<ins>search {name: plan, algorithm: fixed-window, limit: 500, per: 1h} until "},
		{"undo its live changes", plan, "verb=unset", nil, "<ins>search {name: plan, algorithm: fixed-window, limit: 1000, per: 1h}</ins>"},
		{"try a rule as a shadow", plan, "", [][2]string{{"#f-limit", "5"}, {"input[name=shadow]", ""}},
			`<div class="diff"><ins>search {name: plan-trial, algorithm: fixed-window, limit: 5, per: 1h, shadow: true}</ins></div>`},
		{"remove it", plan + "-trial", "verb=remove", nil, "<del>search {name: plan-trial,"},
		{"forget what was spent", plan, "verb=reset", nil, "search plan: 0 requests were forgotten"},
		{"assign an owner", scope, "verb=assign", [][2]string{{"#a-owner", "team-x"}}, "<ins>search owner: team-x</ins>"},
		{"roll back", "/history", "verb=rollback", nil, "<ins>search owner: team-search</ins>"},
		{"import", "/change?verb=import", "", [][2]string{{"#limits", imported}}, "<ins>search {name: plan, algorithm: fixed-window, limit: 9, per: 1h}</ins>"},
	} {
		before, err := s.store.Current(t.Context())
		must(t, err)
		if step.from != "" { // or else from where the last step has led
			do(t, ctx, chromedp.Navigate(s.url+step.from), visible("#main h1"))
		}
		if link := `a[href*="` + step.link + `"]`; step.link != "" {
			do(t, ctx, visible(link), click(link))
		}
		if step.what != "roll back" { // which begins with what it would do
			do(t, ctx, visible("form.fields button.main"))
			for _, field := range step.fields {
				if field[1] == "" {
					do(t, ctx, click(field[0]))
				} else {
					do(t, ctx, visible(field[0]), chromedp.SetValue(chromedp.CSS(field[0]), field[1]))
				}
			}
			do(t, ctx, click("form.fields button.main"))
		}
		do(t, ctx, visible("button[value=make]"), click("button[value=make]"), visible(".note.green"))
		after, err := s.store.Current(t.Context())
		text := eval[string](t, ctx, `document.querySelector("#main").innerHTML`)
		if err != nil || after.Number != before.Number+1 || after.By != "anna" || !strings.Contains(text, step.says) {
			t.Errorf("%s: after version %d comes %+v, %v, and the screen says\n%s", step.what, before.Number, after, err, text)
		}
	}
}
