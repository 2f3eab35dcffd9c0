package browser

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker/page"
)

// visit is a tab on a site, with steps in the words of somebody who uses the page.
type visit struct {
	t   *testing.T
	ctx context.Context
	url string
}

func (v visit) open(path string) {
	v.t.Helper()
	do(v.t, v.ctx, chromedp.Navigate(v.url+path), visible("#main h1"))
}

// follow clicks what leads to another screen, and waits for something there.
func (v visit) follow(selector, until string) {
	v.t.Helper()
	do(v.t, v.ctx, visible(selector), click(selector), visible(until))
}

func (v visit) enter(field, text string) {
	v.t.Helper()
	do(v.t, v.ctx, visible(field), chromedp.SetValue(chromedp.CSS(field), text))
}

// change sees what a form would do, and then has it done.
func (v visit) change() {
	v.t.Helper()
	v.follow("form.fields button.main", "button[value=make]")
	v.follow("button[value=make]", ".note.green")
}

func (v visit) text() string {
	v.t.Helper()
	return eval[string](v.t, v.ctx, `document.querySelector("#main").textContent`)
}

// Each change of the limits is made in the browser, from the screen that offers it, and stands in Redis afterwards.
func TestEachChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := visit{t, tab(t), s.url}
	rules := func() (list []policy.Rule) {
		t.Helper()
		p, err := s.store.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, tree := p.Limits()
		return tree["search"].Rules
	}
	named := func(name string) policy.Rule {
		all := rules()
		if i := slices.IndexFunc(all, func(r policy.Rule) bool { return r.Name == name }); i >= 0 {
			return all[i]
		}
		return policy.Rule{}
	}
	for _, step := range []struct {
		what  string
		steps func()
		done  func(policystore.Version) bool
	}{
		{"pause for a time", func() {
			v.open("/scope?scope=search")
			v.follow(`.acts a[href*="verb=pause"]`, "#for")
			v.enter("#for", "2h")
			v.change()
		}, func(now policystore.Version) bool { return len(now.Pauses) == 1 && !now.Pauses[0].Until.IsZero() }},
		{"resume", func() {
			v.open("/scope?scope=search")
			v.follow(`.acts a[href*="verb=resume"]`, "#reason")
			v.change()
		}, func(now policystore.Version) bool { return len(now.Pauses) == 0 }},
		{"drain", func() {
			v.open("/scope?scope=search")
			v.follow(`.acts a[href*="verb=drain"]`, "#for")
			v.change()
			if !strings.Contains(v.text(), "No task of search runs") {
				t.Errorf("the screen of what still runs says %s", v.text())
			}
		}, func(now policystore.Version) bool { return len(now.Pauses) == 1 }},
		{"resume what was drained", func() {
			v.follow(`.acts a[href*="verb=resume"]`, "#reason")
			v.change()
		}, func(now policystore.Version) bool { return len(now.Pauses) == 0 }},
		{"set a rule for a time", func() {
			v.open("/scope?scope=search")
			v.follow(`a[href*="verb=set"][href*="rule=plan"]`, "#f-limit")
			v.enter("#f-limit", "500")
			v.enter("#for", "1h")
			v.change()
		}, func(policystore.Version) bool { return named("plan").Limit == 500 }},
		{"undo its live changes", func() {
			v.open("/change?verb=set&scope=search&rule=plan")
			v.follow(`a[href*="verb=unset"]`, "#reason")
			v.change()
		}, func(policystore.Version) bool { return named("plan").Limit == 1000 }},
		{"try a rule as a shadow", func() {
			v.open("/change?verb=set&scope=search&rule=plan")
			v.enter("#f-limit", "5")
			do(t, v.ctx, click("input[name=shadow]"))
			v.change()
		}, func(policystore.Version) bool {
			return named("plan").Limit == 1000 && named("plan-trial").Shadow && named("plan-trial").Limit == 5
		}},
		{"remove it", func() {
			v.open("/change?verb=set&scope=search&rule=plan-trial")
			v.follow(`a[href*="verb=remove"]`, "#reason")
			v.change()
		}, func(policystore.Version) bool { return named("plan-trial").Name == "" }},
		{"forget what was spent", func() {
			v.open("/change?verb=set&scope=search&rule=plan")
			v.follow(`a[href*="verb=reset"]`, "#reason")
			v.change()
		}, func(now policystore.Version) bool { return len(now.Resets) == 1 && now.Resets[0].Scope == "search" }},
		{"assign an owner", func() {
			v.open("/scope?scope=search")
			v.follow(`a[href*="verb=assign"]`, "#a-owner")
			v.enter("#a-owner", "team-x")
			v.change()
		}, func(policystore.Version) bool {
			p, err := s.store.Now(t.Context())
			return err == nil && slices.Equal(p.Owners("search"), []string{"team-x"})
		}},
		{"roll back", func() {
			v.open("/history")
			v.follow(`a[href*="verb=rollback"]`, "button[value=make]")
			v.follow("button[value=make]", ".note.green")
		}, func(policystore.Version) bool {
			p, err := s.store.Now(t.Context())
			return err == nil && slices.Equal(p.Owners("search"), []string{"team-search"})
		}},
		{"import", func() {
			v.open("/change?verb=import")
			v.enter("#limits", "limits: {search: {rules: [{name: plan, algorithm: fixed-window, limit: 9, per: 1h}]}}")
			v.change()
		}, func(policystore.Version) bool { return named("plan").Limit == 9 }},
	} {
		before, err := s.store.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		step.steps()
		now, err := s.store.Current(t.Context())
		if err != nil || now.Number != before.Number+1 || now.By != "anna" || !step.done(now) {
			t.Errorf("%s: after version %d comes %+v, %v, with %+v", step.what, before.Number, now, err, rules())
		}
	}
}

// Waiting tasks start next, move and change their priority in the browser, and the history shows who did it. TestActOnTasks cancels.
func TestEachActOnTasks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fill()
	v := visit{t, tab(t), s.url}
	choose := func(id, verb string) {
		t.Helper()
		v.open("/waiters?scope=legacy")
		do(t, v.ctx, click(fmt.Sprintf(`input[name=task][aria-label="choose %s"]`, id)))
		v.follow("button[value="+verb+"]", "#reason")
	}
	// queue is who waits, in the order of the turns.
	queue := func() string {
		t.Helper()
		v.open("/waiters?scope=legacy")
		return eval[string](t, v.ctx, `[...document.querySelectorAll("tbody tr")].map(r => r.dataset.key.replace("default/gacy-", "")).join(" ")`)
	}
	choose("gacy-5", "run")
	v.enter("#reason", "it is late")
	v.follow("button[value=make]", ".note.green")
	if got := queue(); got != "5 0 1 2 3 4 6" {
		t.Errorf("5 starts next, and the queue is %s", got)
	}
	choose("gacy-3", "priority")
	v.enter("#priority", "7")
	v.follow("form.fields button.main", "button[value=make]")
	v.follow("button[value=make]", ".note.green")
	if got := queue(); got != "5 3 0 1 2 4 6" {
		t.Errorf("3 has the highest priority behind 5, and the queue is %s", got)
	}
	choose("gacy-1", "move")
	v.enter("#to", "mail")
	v.follow("form.fields button.main", "button[value=make]")
	v.follow("button[value=make]", ".note.green")
	if got := queue(); got != "5 3 0 2 4 6" {
		t.Errorf("1 has moved, and the queue is %s", got)
	}
	if v.open("/waiters?scope=mail"); !strings.Contains(v.text(), "gacy-1") {
		t.Error("gacy-1 has moved, and does not wait in mail")
	}
	v.open("/history")
	for _, want := range []string{"it is late", "gacy-5", "priority", "move", "to mail"} {
		if !strings.Contains(v.text(), want) {
			t.Errorf("the history has no %q", want)
		}
	}
}

// A viewer, an owner and an admin log in. Each is offered what the role may do, and refused what it may not, whatever is sent.
func TestEachRole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.fill()
	hash, err := page.HashPassword("correct horse battery staple")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "users.yaml")
	text := "people:\n"
	for name, more := range map[string]string{"vera": "role: viewer", "olga": "role: owner, groups: [team-search]", "adam": "role: admin"} {
		text += fmt.Sprintf("  %s: {password: %q, %s}\n", name, hash, more)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	users, err := page.LoadUsers(file)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := page.New(page.Config{Redis: s.rdb, Users: users})
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(handler)
	t.Cleanup(front.Close)
	v := visit{t, tab(t), front.URL}
	for _, role := range []struct {
		name             string
		own, other, over bool // may change its own scope, another's, and all limits
	}{{"vera", false, false, false}, {"olga", true, false, false}, {"adam", true, true, true}} {
		do(t, v.ctx, chromedp.Navigate(v.url+"/scope?scope=search"), visible("#password"))
		v.enter("#name", role.name)
		v.enter("#password", "correct horse battery staple")
		v.follow("form.fields button.main", "#main .crumbs")
		for scope, may := range map[string]bool{"search": role.own, "legacy": role.other} {
			v.open("/scope?scope=" + scope)
			if got := eval[int](t, v.ctx, `document.querySelectorAll('#main a[href*="/change"], #main form[action$="/tasks"]').length`) > 0; got != may {
				t.Errorf("%s is offered changes of %s: %t", role.name, scope, got)
			}
			v.open("/waiters?scope=" + scope)
			if got := eval[int](t, v.ctx, `document.querySelectorAll('#main button[name=verb]').length`) > 0; got != may {
				t.Errorf("%s is offered to act on the tasks of %s: %t", role.name, scope, got)
			}
			for _, form := range []string{"verb=pause", "verb=set&rule=plan&field:limit=3", "verb=reset"} {
				if got := v.post("/change", form+"&do=make&scope="+scope) == 403; got == may {
					t.Errorf("%s sends %s for %s and is refused: %t", role.name, form, scope, got)
				}
			}
			if got := v.post("/tasks", "verb=cancel&all=yes&scope="+scope) == 403; got == may {
				t.Errorf("%s counts what to cancel in %s and is refused: %t", role.name, scope, got)
			}
		}
		if got := v.post("/change", "verb=import&limits=limits:+{}&replace=yes") == 403; got == role.over {
			t.Errorf("%s imports limits and is refused: %t", role.name, got)
		}
		v.open("/")
		v.follow(`form[action$="/logout"] button`, "#password")
	}
	history, err := s.store.History(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	made := map[string]int{}
	for _, one := range history {
		if made[one.By]++; one.By == "vera" || one.By == "olga" && !strings.Contains(one.Change, "search") {
			t.Errorf("%s made version %d: %s", one.By, one.Number, one.Change)
		}
	}
	if made["olga"] != 3 || made["adam"] < 3 {
		t.Errorf("the history has versions by %v", made)
	}
}

// post sends a form as a page of this site would, and returns the status of the answer.
func (v visit) post(path, form string) int {
	v.t.Helper()
	return eval[int](v.t, v.ctx, fmt.Sprintf(`fetch(%q, {method: "POST", body: new URLSearchParams(%q)}).then(r => r.status)`, path, form))
}
