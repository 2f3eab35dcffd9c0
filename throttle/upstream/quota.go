package upstream

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	shopifyField  = "x-shopify-shop-api-call-limit"
	amazonField   = "x-amzn-ratelimit-limit"
	zendeskPrefix = "zendesk-ratelimit-"
)

// quotas reads every quota of an answer and leaves each once.
func (c clock) quotas(fields []field) []Quota {
	found := c.draft(fields)
	for _, g := range groupsOf(fields) {
		found = append(found, g.findings(c)...)
	}
	for i := range fields {
		if q, ok := c.special(&fields[i]); ok {
			found = append(found, finding{q, vendorRank, false})
		}
	}
	return merge(found)
}

// A tally is a number that several values give. If the values disagree, it is unknown.
type tally struct {
	n            int64
	told, spoilt bool
}

func (t *tally) add(s string) {
	n, ok := count(s)
	if !ok {
		return
	}
	t.spoilt = t.spoilt || t.told && t.n != n
	t.n, t.told = n, true
}

func (t *tally) value() int64 {
	if !t.told || t.spoilt {
		return Unknown
	}
	return t.n
}

// A group is what several fields give of one quota.
type group struct {
	subject
	name                    string
	limits, remaining, used tally
	resets, resetAfters     []string
	interval                time.Duration // its window, where that has a field of its own
	policies                []policy
}

type groups []group

// of returns the group of a subject, which is good until the next is asked for.
func (all *groups) of(s subject) *group {
	at := slices.IndexFunc(*all, func(g group) bool { return g.subject == s })
	if at < 0 {
		at, *all = len(*all), append(*all, group{subject: s})
	}
	return &(*all)[at]
}

// groupsOf brings together the fields that speak of the same quota.
func groupsOf(fields []field) groups {
	var all groups
	plain := subject{source: "ratelimit", unit: "requests"}
	for i := range fields {
		f := &fields[i]
		switch f.name {
		case "ratelimit":
			all.of(plain).dictionary(f.members())
		case "ratelimit-policy":
			all.of(plain).policyList(f.members())
		case amazonField:
		default:
			if s, r := parseName(f.name); r != noRole {
				all.of(s).add(f, r)
			}
		}
	}
	return all
}

func (g *group) add(f *field, r role) {
	switch r {
	case limitRole:
		g.limitList(f)
	case remainingRole:
		addAll(&g.remaining, f)
	case usedRole:
		addAll(&g.used, f)
	case resetRole:
		g.resets = append(g.resets, f.trimmed()...)
	case resetAfterRole:
		g.resetAfters = append(g.resetAfters, f.trimmed()...)
	case windowRole:
		for _, v := range f.trimmed() {
			g.interval = window(v, time.Millisecond)
		}
	case nameRole:
		for _, v := range f.trimmed() {
			g.name = printable(v)
		}
	}
}

func addAll(t *tally, f *field) {
	for _, v := range f.trimmed() {
		t.add(v)
	}
}

// findings returns the group's own quota, with the window of the policy that has
// its limit, and behind it the other policies.
func (g *group) findings(c clock) []finding {
	q := policyQuota(g.source, policy{g.name, g.unit, g.limits.value(), cmp.Or(g.window, g.interval)})
	q.Remaining, q.Reset = g.remaining.value(), g.reset(c)
	if used := g.used.value(); q.Remaining == Unknown && q.Limit != Unknown && used != Unknown {
		q.Remaining = max(q.Limit-used, 0)
	}
	at := slices.IndexFunc(g.policies, func(p policy) bool { return q.Window == 0 && p.limit == q.Limit && p.unit == q.Unit })
	if q.Limit == Unknown && q.Remaining != Unknown && len(g.policies) == 1 {
		at = 0
	}
	if at >= 0 {
		q.Limit, q.Unit, q.Window = g.policies[at].limit, g.policies[at].unit, g.policies[at].window
	}
	found := []finding{{q, g.rank(), q.Window == 0 && !g.byUnit}}
	for i, p := range g.policies {
		if i != at && g.window == 0 {
			found = append(found, finding{policyQuota(g.source, p), g.rank(), false})
		}
	}
	return found
}

func (g *group) rank() rank {
	if g.source == "ratelimit" {
		return earlierRank
	}
	return vendorRank
}

// reset prefers what was written as a wait.
func (g *group) reset(c clock) time.Duration {
	if wait := c.longest(g.resetAfters); wait != Unknown {
		return wait
	}
	return c.longest(g.resets)
}

// longest returns the longest of the resets that are understood.
func (c clock) longest(resets []string) time.Duration {
	longest := time.Duration(Unknown)
	for _, v := range resets {
		if wait, ok := c.reset(v); ok {
			longest = max(longest, wait)
		}
	}
	return longest
}

// special reads the fields that have a form of their own.
func (c clock) special(f *field) (Quota, bool) {
	switch f.name {
	case shopifyField:
		return shopify(f)
	case amazonField:
		return amazon(f)
	}
	if name, ok := strings.CutPrefix(f.name, zendeskPrefix); ok {
		return c.zendesk(name, f)
	}
	return Quota{}, false
}

// shopify reads 32/40: so much of the bucket is full.
func shopify(f *field) (Quota, bool) {
	var limits, used tally
	for _, v := range f.trimmed() {
		if u, l, ok := strings.Cut(v, "/"); ok {
			used.add(u)
			limits.add(l)
		}
	}
	limit, full := limits.value(), used.value()
	if limit == Unknown || full == Unknown {
		return Quota{}, false
	}
	q := policyQuota("x-shopify", policy{"", "requests", limit, 0})
	q.Remaining = max(limit-full, 0)
	return q, true
}

// amazon reads a rate: so many a second, or one in the time that a fraction
// makes of it. That time is rounded up.
func amazon(f *field) (Quota, bool) {
	values := f.trimmed()
	if len(values) != 1 {
		return Quota{}, false
	}
	whole, billionths, ok := decimal(values[0])
	if !ok || whole > 1e9 {
		return Quota{}, false
	}
	p := policy{"", "requests", whole, time.Second}
	if billionths != 0 {
		rate := whole*1e9 + billionths
		p.limit, p.window = 1, time.Duration((1e18+rate-1)/rate)
	}
	q := policyQuota("x-amzn-ratelimit", p)
	q.Rate = true
	return q, p.window <= maxSpan
}

// zendesk reads total=100; remaining=99; resets=41 of one endpoint.
func (c clock) zendesk(name string, f *field) (Quota, bool) {
	q := policyQuota("zendesk-ratelimit", policy{printable(name), "requests", Unknown, 0})
	for _, v := range f.trimmed() {
		for part := range strings.SplitSeq(v, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			n, ok := count(value)
			wait, isReset := c.reset(value)
			switch {
			case key == "total" && ok:
				q.Limit = n
			case key == "remaining" && ok:
				q.Remaining = n
			case key == "resets" && isReset:
				q.Reset = wait
			}
		}
	}
	return q, q.Limit != Unknown && q.Remaining != Unknown
}
