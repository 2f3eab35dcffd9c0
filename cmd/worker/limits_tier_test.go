package main

import "testing"

// docs/tiers.md, "Put a customer into a tier": what the commands say, and what they refuse.
func TestLimitsTier(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "import", "-replace", limitsFile(t, `
limits:
  payments:
    tiers: {gold: {rules: [{name: tenant, algorithm: sliding-window, limit: 100, per: 1s}]}, free: {}}
    scopes: {"*": {rules: [{name: tenant, algorithm: sliding-window, limit: 2, per: 1s}]}}
`))
	l.says(0, "tier", "no tier was set")
	l.says(0, "tier payments/acme gold -dry-run", "nothing was changed", "no task waits there")
	l.says(0, "show payments/acme", "limit: 2,")
	l.says(0, "tier payments/acme gold -as anna", "version 3 by anna", "+ payments/acme tier gold", "!no rule has changed")
	l.says(0, "show payments/acme", "payments//gold", "limit: 100")
	out, _ := ask(t, 0, "inspect", "-redis", l.url, "scope", "payments/acme")
	says(t, out, "tier       gold of payments/acme")
	out, _ = ask(t, 0, "inspect", "-redis", l.url, "-json", "scope", "payments/acme")
	says(t, out, `"tiers":[{"scope":"payments/acme","tier":"gold"}]`)
	l.says(0, "pause payments//gold", "+ payments//gold paused")
	l.says(0, "show payments/acme", "payments//gold paused")
	l.says(0, "resume payments/acme", "+ payments/acme not paused")
	l.says(0, "unset payments/acme", "version 6")
	l.says(0, "resume payments//gold", "- payments//gold paused")
	l.says(0, "assign payments//gold weight=3", "+ payments//gold weight: 3")
	l.says(0, "show payments/acme", "payments//gold weight: 3")
	l.says(0, "show payments/bob", "!gold")
	l.says(1, "drain payments//gold", "payments//gold is a tier", "try: worker limits pause")
	l.says(1, "set payments//golf tenant limit=3", `payments//golf is a place of the tier "golf", and payments has no tier "golf"; did you mean gold?`)
	l.says(1, "pause payments//acme", `payments has no tier "acme"; write free or gold`)
	l.says(1, "assign payments/acme//gold weight=3", `the limits have no tiers below "payments/acme"`)
	l.says(1, "show payments//golf", "the limits have no rules at payments//golf")
	l.says(0, "show payments//gold", "limit: 100", "weight: 3")
	l.says(0, "tier payments/** gold", "+ payments/** tier gold")
	l.says(0, "show payments/**", "payments//gold")
	l.says(0, "show payments/*gold", "limit: 2,", "!payments//gold")
	l.says(0, "tier payments/acme free", "- payments/acme tier gold", "+ payments/acme tier free")
	l.says(0, "tier payments", "payments/acme free")
	l.says(0, "tier payments/bob", "no tier was set")
	l.says(1, "tier payments/acme free", "it is so already")
	l.says(1, "tier payments/acme golf", `payments has no tier "golf"; did you mean gold?`)
	l.says(1, "tier payments/* gold", `name 2 is "*"`)
	l.says(2, "tier payments/acme gold x", `unexpected argument "x"`)
	l.says(0, "history", "tier payments/acme free, was gold", "+ payments/acme tier free")
	l.says(0, "set payments//gold tenant limit=150", "+ payments//gold {name: tenant")
	l.says(0, "list", "payments//gold", "limit: 150")
	l.says(0, "tier payments/acme -", "- payments/acme tier free", "!+ payments")
	want(t, l.objects("history")[11], map[string]any{"change": "tier payments/acme removed, was free", "via": "cli"})
}
