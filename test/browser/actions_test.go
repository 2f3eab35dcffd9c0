package browser

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
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
