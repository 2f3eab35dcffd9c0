package browser

import (
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
)

// Each change of the limits is made in the browser, from the screen that offers it, and stands in Redis afterwards.
func TestEachChange(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := tab(t)
	now := func() *policy.Policy {
		t.Helper()
		p, err := s.store.Now(t.Context())
		must(t, err)
		return p
	}
	named := func(name string) (rule policy.Rule) {
		_, tree := now().Limits()
		for _, one := range tree["search"].Rules {
			if one.Name == name {
				rule = one
			}
		}
		return rule
	}
	type check = func(policystore.Version) bool
	pauses := func(n int) check { return func(v policystore.Version) bool { return len(v.Pauses) == n } }
	planIs := func(limit int64) check { return func(policystore.Version) bool { return named("plan").Limit == limit } }
	owner := func(name string) check {
		return func(policystore.Version) bool { return slices.Equal(now().Owners("search"), []string{name}) }
	}
	const scope, plan = "/scope?scope=search", "/change?verb=set&scope=search&rule=plan"
	const imported = "limits: {search: {rules: [{name: plan, algorithm: fixed-window, limit: 9, per: 1h}]}}"
	for _, step := range []struct {
		what, from, link string
		fields           [][2]string // selector and value
		done             check
	}{
		{"pause for a time", scope, "verb=pause", [][2]string{{"#for", "2h"}}, func(v policystore.Version) bool {
			return len(v.Pauses) == 1 && !v.Pauses[0].Until.IsZero()
		}},
		{"resume", scope, "verb=resume", nil, pauses(0)},
		{"drain", scope, "verb=drain", nil, func(v policystore.Version) bool {
			text := eval[string](t, ctx, `document.querySelector("#main").textContent`)
			return len(v.Pauses) == 1 && strings.Contains(text, "No task of search runs")
		}},
		{"resume what was drained", "", "verb=resume", nil, pauses(0)},
		{"set a rule for a time", scope, "rule=plan", [][2]string{{"#f-limit", "500"}, {"#for", "1h"}}, planIs(500)},
		{"undo its live changes", plan, "verb=unset", nil, planIs(1000)},
		{"try a rule as a shadow", plan, "", [][2]string{{"#f-limit", "5"}, {"input[name=shadow]", ""}}, func(policystore.Version) bool {
			return named("plan").Limit == 1000 && named("plan-trial").Shadow && named("plan-trial").Limit == 5
		}},
		{"remove it", plan + "-trial", "verb=remove", nil, func(policystore.Version) bool { return named("plan-trial").Name == "" }},
		{"forget what was spent", plan, "verb=reset", nil, func(v policystore.Version) bool {
			return len(v.Resets) == 1 && v.Resets[0].Scope == "search"
		}},
		{"assign an owner", scope, "verb=assign", [][2]string{{"#a-owner", "team-x"}}, owner("team-x")},
		{"roll back", "/history", "verb=rollback", nil, owner("team-search")},
		{"import", "/change?verb=import", "", [][2]string{{"#limits", imported}}, planIs(9)},
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
		if err != nil || after.Number != before.Number+1 || after.By != "anna" || !step.done(after) {
			t.Errorf("%s: after version %d comes %+v, %v", step.what, before.Number, after, err)
		}
	}
}
