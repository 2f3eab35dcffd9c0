package throttle

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// accountOf is an account of 100 a second with tenants below it, of 50 a second each where a rule is
// named, whose nodes say this and that.
func accountOf(t *testing.T, account, tenants string) *Policy {
	t.Helper()
	return mustParse(t, fmt.Sprintf(`
limits:
  p:
    %s
    rules: [{name: all, algorithm: sliding-window, limit: 100, per: 1s}]
    scopes: {"*": {%s}}
`, account, tenants))
}

// "What one tenant is answered slows no other": neither by a limit that its API tells, nor by refusals,
// whether the tenant has rules or not. Levels above are corrected where they say that they heed.
func TestAnswersStayAtTheirScope(t *testing.T) {
	t.Parallel()
	const rules = `rules: [{name: own, algorithm: sliding-window, limit: 3000, per: 1m}]`
	for name, row := range map[string]struct {
		account, tenants  string
		neighbour, refuse int64 // units that the account lets through after a limit of 1, after 40 refusals
	}{
		"tenants with rules":      {"", rules, 100, 100},
		"tenants without":         {"", "", 100, 100},
		"the account heeds":       {"answers: heed", "", 1, 10},
		"so it does by numbers":   {"answers: {least: 20%}", "", 1, 20},
		"tenants do":              {"", "answers: heed", 100, 100},
		"all do, with own rules":  {"answers: heed", rules, 1, 100}, // a refusal cuts the lowest level
		"and tenants that do not": {"answers: heed", "answers: pause", 100, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
				b.heed("p/a", owns(1, sec))
				b.heed("p/a/below", owns(1, sec))
				if n := b.admitted("p/b", 110); int64(n) != min(row.neighbour, 110) {
					b.t.Errorf("%d calls of the neighbour pass after a limit of 1, want %d", n, row.neighbour)
				}
			})
			onBoth(t, Config{}, accountOf(t, row.account, row.tenants), func(b *bench) {
				for range 40 {
					b.heed("p/a", turnedDown(ms))
					b.pass(sec)
				}
				if n := b.admitted("p/b", 110); int64(n) < row.refuse || int64(n) > row.refuse+4 {
					b.t.Errorf("%d calls of the neighbour pass after refusals, want %d to %d: it grows by 2 a second", n, row.refuse, row.refuse+4)
				}
			})
		})
	}
}

// "A provider can name its hosts, and answers of others are ignored": their pauses, refusals and limits.
func TestHostsOfAnswers(t *testing.T) {
	t.Parallel()
	policy := accountOf(t, "answers: heed\n    hosts: [api.example.com, \"*.example.org:8443\", \"2001:DB8::1\", \"[::1]:80\", 192.0.2.1]",
		"hosts: [own.example.net]}, anybody: {")
	for host, heeded := range map[string]bool{
		"": true, "api.example.com:443": true, "API.Example.com.:80": true, "api.example.com": true,
		"x.api.example.com:443": false, "example.com:443": false, "api.example.com.evil.test:443": false,
		"a.example.org:8443": true, "a.b.example.org:8443": true, "example.org:8443": false, "a.example.org:443": false, "a.example.org": false,
		"notexample.org:8443": false, "[2001:db8:0::1]:443": true, "[::1]:80": true, "[::1]:81": false, "192.0.2.1:9": true,
		"[::ffff:192.0.2.1]:9": true, "192.0.2.2:9": false, "own.example.net:443": false,
	} {
		t.Run(host, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policy, func(b *bench) {
				refusal, limit := turnedDown(time.Minute), owns(1, sec)
				refusal.Host, limit.Host = host, host
				if out := b.heed("p", refusal); out.Changed != heeded {
					b.t.Errorf("a refusal: %+v", out)
				}
				if out := b.heed("p", limit); out.Changed != heeded {
					b.t.Errorf("a limit: %+v", out)
				}
				if told, err := b.UpstreamState(ctx, "p"); err != nil || len(told.Pauses) > 0 != heeded || len(told.Corrections) > 0 != heeded {
					b.t.Errorf("%+v, %v", told, err)
				}
			})
		})
	}
	for scope, want := range map[string][]string{"p/a": {"own.example.net"}, "p/a/b": {"own.example.net"}, "q": nil} {
		for _, p := range []*Policy{policy, mustParse(t, string(policy.YAML()))} {
			if got := p.Hosts(mustScope(t, scope)); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", scope, got, want)
			}
		}
	}
}

// A request's host and port, whatever its URL leaves out.
func TestHostOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://api.example.com/x": "api.example.com:443", "http://api.example.com": "api.example.com:80", "HTTP://a:81/": "a:81",
		"http://[::1]/": "[::1]:80", "https://u:p@a.example.com:8443": "a.example.com:8443", "ftp://a/": "a:",
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := HostOf(u); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// Faults of hosts: a row is what stands there, at 1:21.
func TestHostsFaults(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"api.example.com":           `1:21: limits.a.hosts: hosts is the text "api.example.com"; write a list of hosts, such as [api.example.com]`,
		"[]":                        `1:21: limits.a.hosts: hosts is empty, and no answer would count; name one, or remove the line`,
		"[https://api.example.com]": `1:22: limits.a.hosts: host "https://api.example.com" is a URL or a path; write its host alone, such as api.example.com`,
		`["a:http"]`:                `1:22: limits.a.hosts: host "a:http" has a port that is no number from 1 to 65535`,
		`["a:0"]`:                   `1:22: limits.a.hosts: host "a:0" has a port that is no number from 1 to 65535`,
		`["a:70000"]`:               `1:22: limits.a.hosts: host "a:70000" has a port that is no number from 1 to 65535`,
		`["a:b:c"]`:                 `1:22: limits.a.hosts: host "a:b:c" has no port behind its last colon; write HOST or HOST:PORT`,
		"[münchen.example]":         `1:22: limits.a.hosts: host "münchen.example" is not ASCII; write the form that begins with xn--`,
		"[a b]":                     `1:22: limits.a.hosts: host "a b" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*"]`:                     `1:22: limits.a.hosts: host "*" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`["*.192.0.2.1"]`:           `1:22: limits.a.hosts: host "*.192.0.2.1" is no host; write a name such as api.example.com or *.example.com, or an address`,
		`[a, a]`:                    `1:25: limits.a.hosts: host "a" is there already; keep one of the two`,
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {hosts: "+text+"}}\n", want)
		})
	}
	many := make([]string, maxHosts+1)
	for i := range many {
		many[i] = fmt.Sprintf("h%d.example", i)
	}
	if _, err := NewPolicy(UnmatchedDeny, map[string]ScopeConfig{"a": {Hosts: many}}); err == nil || !strings.Contains(err.Error(), "hosts are 101; the most is 100") {
		t.Errorf("%v", err)
	}
}

// The hosts of a scope count in every period of its calendars: also in one whose beginning the limiter learns
// from a reply, since its own clock is a moment behind.
func TestHostsCountInEveryPeriod(t *testing.T) {
	t.Parallel()
	policy := mustParse(t, `
limits:
  p:
    hosts: [api.example.com]
    rules:
      - {name: r, algorithm: calendar, limit: 1000, resets: "0 0 * * *"}
      - {name: tokens, algorithm: token-bucket, limit: 1000, per: 1s, unit: tokens}
`)
	for what, costs := range map[string]Costs{"a plain cost": nil, "costs by unit": {Requests: 1}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			onBoth(t, Config{}, policy, func(b *bench) {
				b.taken("2026-01-09T23:59:59.9Z")
				b.atTime("2026-01-10T00:00:00.1Z")
				b.decide(Request{Scope: "p", Costs: costs})
				refusal := turnedDown(time.Minute)
				refusal.Host = "elsewhere.example.net:443"
				if out := b.heed("p", refusal); out.Changed {
					b.t.Errorf("an answer of another host: %+v", out)
				}
			})
		})
	}
}
