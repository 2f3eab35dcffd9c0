package upstream

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

const (
	shopifyField    = "x-shopify-shop-api-call-limit"
	salesforceField = "sforce-limit-info"
	amazonField     = "x-amzn-ratelimit-limit"
	zendeskPrefix   = "zendesk-ratelimit-"
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

// newQuota returns a quota without its state.
func newQuota(source, name, unit string, limit int64, window time.Duration) Quota {
	return Quota{Name: name, Unit: unit, Limit: limit, Remaining: Unknown, Reset: Unknown, Window: window, Source: source}
}

// A tally is the number that several values give. If the values disagree, it is unknown.
type tally []int64

func (t *tally) add(values ...string) {
	for _, v := range values {
		if n, ok := count(v); ok {
			*t = append(*t, n)
		}
	}
}

func (t tally) value() int64 {
	if len(t) == 0 || slices.Min(t) != slices.Max(t) {
		return Unknown
	}
	return t[0]
}

// A group is what several fields give of one quota.
type group struct {
	subject
	name                    string
	limits, remaining, used tally
	resets, resetAfters     []string
	interval                time.Duration // its window, where that has a field of its own
	policies                []Quota
}

// groupsOf brings together the fields that speak of the same quota.
func groupsOf(fields []field) (all []*group) {
	of := func(s subject) *group {
		at := slices.IndexFunc(all, func(g *group) bool { return g.subject == s })
		if at < 0 {
			at, all = len(all), append(all, &group{subject: s})
		}
		return all[at]
	}
	plain := subject{source: "ratelimit", unit: "requests"}
	for i := range fields {
		f := &fields[i]
		switch f.name {
		case "ratelimit":
			of(plain).dictionary(f.members())
		case "ratelimit-policy":
			of(plain).policyList(f.members())
		case amazonField:
		default:
			if s, r := parseName(f.name); r != noRole {
				of(s).add(f, r)
			}
		}
	}
	return all
}

func (g *group) add(f *field, r role) {
	switch r {
	case limitRole:
		g.limitList(f.members())
	case remainingRole:
		g.remaining.add(f.trimmed()...)
	case usedRole:
		g.used.add(f.trimmed()...)
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

// findings returns the group's own quota, with the window of the policy that has its limit, and behind it the other policies.
func (g *group) findings(c clock) []finding {
	q := newQuota(g.source, g.name, g.unit, g.limits.value(), cmp.Or(g.window, g.interval))
	q.Remaining, q.Reset = g.remaining.value(), c.longest(g.resetAfters) // written as a wait, it is the more exact
	if q.Reset == Unknown {
		q.Reset = c.longest(g.resets)
	}
	if used := g.used.value(); q.Remaining == Unknown && q.Limit != Unknown && used != Unknown {
		q.Remaining = max(q.Limit-used, 0)
	}
	at := slices.IndexFunc(g.policies, func(p Quota) bool { return q.Window == 0 && p.Limit == q.Limit && p.Unit == q.Unit })
	if q.Limit == Unknown && q.Remaining != Unknown && len(g.policies) == 1 {
		at = 0
	}
	if at >= 0 {
		q.Limit, q.Unit, q.Window = g.policies[at].Limit, g.policies[at].Unit, g.policies[at].Window
	}
	r := vendorRank
	if g.source == "ratelimit" {
		r = earlierRank
	}
	found := []finding{{q, r, q.Window == 0 && !g.byUnit}}
	for i, p := range g.policies {
		if i != at && g.window == 0 {
			p.Source = g.source
			found = append(found, finding{p, r, false})
		}
	}
	return found
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
	name, isZendesk := strings.CutPrefix(f.name, zendeskPrefix)
	switch {
	case f.name == shopifyField:
		return usage("x-shopify", f.trimmed(), 0)
	case f.name == salesforceField:
		return salesforce(f)
	case f.name == amazonField:
		return amazon(f)
	case isZendesk:
		return c.zendesk(name, f)
	}
	return Quota{}, false
}

// usage reads 32/40: so many of so many units are used.
func usage(source string, values []string, window time.Duration) (Quota, bool) {
	var limits, used tally
	for _, v := range values {
		if u, l, ok := strings.Cut(v, "/"); ok {
			used.add(u)
			limits.add(l)
		}
	}
	limit, full := limits.value(), used.value()
	if limit == Unknown || full == Unknown {
		return Quota{}, false
	}
	q := newQuota(source, "", "requests", limit, window)
	q.Remaining = max(limit-full, 0)
	return q, true
}

// salesforce reads api-usage=18/5000; per-app-api-usage=17/250(appName=x): the calls of the last 24 hours, here those of the
// organization alone.
func salesforce(f *field) (Quota, bool) {
	var values []string
	for _, v := range f.trimmed() {
		for part := range strings.SplitSeq(v, ";") {
			if usage, ok := strings.CutPrefix(strings.TrimSpace(part), "api-usage="); ok {
				values = append(values, usage)
			}
		}
	}
	return usage("sforce", values, day)
}

// amazon reads a rate: units per second, or one unit in the time that a fraction makes of it. That time is rounded up.
func amazon(f *field) (Quota, bool) {
	values := f.trimmed()
	if len(values) != 1 {
		return Quota{}, false
	}
	whole, billionths, ok := decimal(values[0])
	if !ok || whole > 1e9 {
		return Quota{}, false
	}
	q := newQuota("x-amzn-ratelimit", "", "requests", whole, time.Second)
	q.Rate = true
	if billionths != 0 {
		rate := whole*1e9 + billionths
		q.Limit, q.Window = 1, time.Duration((1e18+rate-1)/rate)
	}
	return q, q.Window <= maxSpan
}

// zendesk reads total=100; remaining=99; resets=41 of one endpoint.
func (c clock) zendesk(name string, f *field) (Quota, bool) {
	q := newQuota("zendesk-ratelimit", printable(name), "requests", Unknown, 0)
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

// A rank orders sources by precedence if an answer gives the same quota twice.
type rank int

const (
	currentRank rank = iota // the IETF draft, with names
	earlierRank             // the IETF draft, earlier forms
	vendorRank              // vendors' own fields
)

// maxFindings bounds the work of merging.
const maxFindings = 64

// A finding is a quota of some fields, before it is compared with those of others.
type finding struct {
	Quota
	rank  rank
	plain bool // no policy's and of no window: it may speak of any limit on its unit
}

// merge leaves each quota once, in an order of its own.
func merge(found []finding) []Quota {
	found = slices.DeleteFunc(found, finding.saysNothing)
	slices.SortFunc(found, finding.compare)
	found = found[:min(len(found), maxFindings)]
	found = joinTwins(found)
	found = dropLesser(found)
	if len(found) == 0 {
		return nil
	}
	quotas := make([]Quota, min(len(found), MaxQuotas))
	for i := range quotas {
		quotas[i] = found[i].Quota
	}
	return quotas
}

// saysNothing is true of a quota without numbers, and of one of 0: that is how APIs write that they have none.
func (f finding) saysNothing() bool {
	return f.Limit == 0 || f.Limit == Unknown && f.Remaining == Unknown
}

func (f finding) compare(g finding) int {
	return cmp.Or(
		cmp.Compare(f.rank, g.rank),
		strings.Compare(f.Unit, g.Unit),
		cmp.Compare(f.Window, g.Window),
		strings.Compare(f.Name, g.Name),
		strings.Compare(f.Source, g.Source),
		cmp.Compare(f.Limit, g.Limit),
		cmp.Compare(f.Remaining, g.Remaining),
		cmp.Compare(f.Reset, g.Reset),
	)
}

// joinTwins joins a plain quota with the one that repeats its numbers and has more of them: Kong writes the limit of its shortest
// window a second time, with the reset.
func joinTwins(found []finding) []finding {
	twinOf := func(f finding) int {
		return slices.IndexFunc(found, func(g finding) bool { return f.plain && !g.plain && g.isTwin(f) })
	}
	for _, f := range found {
		if at := twinOf(f); at >= 0 {
			found[at].fill(f)
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(f finding) bool { return twinOf(f) >= 0 })
}

// isTwin reports whether f and g may be the same quota: neither contradicts the other.
func (f finding) isTwin(g finding) bool {
	return f.Unit == g.Unit && f.Limit != Unknown && f.Limit == g.Limit &&
		(f.Remaining == g.Remaining || f.Remaining == Unknown || g.Remaining == Unknown) &&
		(f.Window == 0 || g.Reset <= f.Window)
}

func (f *finding) fill(g finding) {
	if f.Remaining == Unknown {
		f.Remaining = g.Remaining
	}
	if f.Reset == Unknown {
		f.Reset = g.Reset
	}
}

// dropLesser leaves out quotas that a higher rank has too: of the same unit and, unless they are plain, the same window. A quota
// with Remaining is left out only for one with Remaining.
func dropLesser(found []finding) []finding {
	kept := found[:0]
	for _, f := range found {
		if !slices.ContainsFunc(kept, func(g finding) bool {
			return g.rank < f.rank && g.Unit == f.Unit && (f.plain || f.Window != 0 && f.Window == g.Window) &&
				(g.Remaining != Unknown || f.Remaining == Unknown)
		}) {
			kept = append(kept, f)
		}
	}
	return kept
}
