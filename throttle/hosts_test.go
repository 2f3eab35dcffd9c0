package throttle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// accountOf is an account of 100 a second with tenants below it, of 50 a second each where a rule is
// named, whose nodes say this and that.
func accountOf(t *testing.T, account, tenants string) *policy.Policy {
	t.Helper()
	return parsedPolicy(t, fmt.Sprintf(`
limits:
  p:
    %s
    rules: [{name: all, algorithm: sliding-window, limit: 100, per: 1s}]
    scopes: {"*": {%s}}
`, account, tenants))
}

// "An API's answer to one tenant slows no other": neither by a limit that its API tells, nor by refusals,
// whether the tenant has rules or not. Levels above are corrected where they say that they heed.
func TestAnswersStayAtTheirScope(t *testing.T) {
	t.Parallel()
	const rules = `rules: [{name: own, algorithm: sliding-window, limit: 3000, per: 1m}]`
	for name, row := range map[string]struct {
		account, tenants  string
		neighbour, refuse int // units that the account lets through after a limit of 1, after 40 refusals
	}{
		"tenants with rules":      {"", rules, 100, 100},
		"tenants without":         {"", "", 100, 100},
		"the account heeds":       {"answers: heed", "", 1, 10},
		"so it does by numbers":   {"answers: {least: 20%}", "", 1, 20},
		"tenants do":              {"", "answers: heed", 100, 100},
		"all do, with own rules":  {"answers: heed", rules, 1, 100}, // a refusal cuts the lowest level
		"and tenants that do not": {"answers: heed", "answers: pause", 100, 100},
	} {
		onBothIn(t, name+", a limit", Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
			b.hear("p/a", owns(1, sec))
			b.hear("p/a/below", owns(1, sec))
			b.admits("the neighbour after a limit of 1", "p/b", 110, row.neighbour)
		})
		onBothIn(t, name+", refusals", Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
			for range 40 {
				b.hear("p/a", turnedDown(ms))
				b.pass(sec)
			}
			if n := b.admitted("p/b", 110); n < row.refuse || n > row.refuse+4 {
				b.t.Errorf("%d calls of the neighbour pass after refusals, want %d to %d: it grows by 2 a second", n, row.refuse, row.refuse+4)
			}
		})
	}
}

// "A provider can name its hosts, and answers of others are ignored": their pauses, refusals and limits.
func TestHostsOfAnswers(t *testing.T) {
	t.Parallel()
	pol := accountOf(t, "answers: heed\n    hosts: [api.example.com, \"*.example.org:8443\", \"2001:DB8::1\", \"[::1]:80\", 192.0.2.1]",
		"hosts: [own.example.net]}, anybody: {")
	for host, heeded := range map[string]bool{
		"": true, "api.example.com:443": true, "API.Example.com.:80": true, "api.example.com": true,
		"x.api.example.com:443": false, "example.com:443": false, "api.example.com.evil.test:443": false,
		"a.example.org:8443": true, "a.b.example.org:8443": true, "example.org:8443": false, "a.example.org:443": false, "a.example.org": false,
		"notexample.org:8443": false, "[2001:db8:0::1]:443": true, "[::1]:80": true, "[::1]:81": false, "192.0.2.1:9": true,
		"[::ffff:192.0.2.1]:9": true, "192.0.2.2:9": false, "own.example.net:443": false,
	} {
		onBothIn(t, host, Config{}, pol, func(b *bench) {
			refusal, limit := turnedDown(time.Minute), owns(1, sec)
			refusal.Host, limit.Host = host, host
			if one, other := b.hear("p", refusal), b.hear("p", limit); one.Changed != heeded || other.Changed != heeded {
				b.t.Errorf("a refusal: %+v; a limit: %+v", one, other)
			}
			if told, err := b.UpstreamState(ctx, "p"); err != nil || len(told.Pauses) > 0 != heeded || len(told.Corrections) > 0 != heeded {
				b.t.Errorf("%+v, %v", told, err)
			}
		})
	}
	for scope, want := range map[string][]string{"p/a": {"own.example.net"}, "p/a/b": {"own.example.net"}, "q": nil} {
		for _, p := range []*policy.Policy{pol, parsedPolicy(t, string(limitsyaml.Format(pol)))} {
			if got := p.Hosts(parsedScope(t, scope)); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", scope, got, want)
			}
		}
	}
}
