package upstream

import "time"

// A policy is a limit without its state.
type policy struct {
	name   string // as in the field, "" in the earlier forms
	unit   string
	limit  int64
	window time.Duration
}

// draft reads the IETF draft's two fields in the form in which policies have
// names: RateLimit-Policy tells the limits, RateLimit their state.
func (c clock) draft(fields []field) []finding {
	var found []finding
	for _, f := range fields {
		if f.name != "ratelimit-policy" {
			continue
		}
		for _, p := range policies(f.members()) {
			if p.name != "" && byName(found, p.name) == nil {
				found = append(found, finding{policyQuota("ratelimit", p), currentRank, false})
			}
		}
	}
	for _, f := range fields {
		if f.name == "ratelimit" {
			found = c.states(found, f.members())
		}
	}
	for i := range found {
		found[i].Name = printable(found[i].Name)
	}
	return found
}

// states gives the policies their state; one of a policy that was not told
// stands for itself. Of two states of one name the first counts.
func (c clock) states(found []finding, members []member) []finding {
	for _, m := range members {
		remaining, ok := count(m.param("r").text)
		if !m.isNamed() || !ok {
			continue
		}
		f := byName(found, m.value.text)
		if f == nil {
			p := policy{m.value.text, quotaUnit(&m), Unknown, 0}
			found = append(found, finding{policyQuota("ratelimit", p), currentRank, false})
			f = &found[len(found)-1]
		}
		if f.Remaining != Unknown {
			continue
		}
		f.Remaining = remaining
		if wait, ok := (clock{c.now, time.Second}).reset(m.param("t").text); ok {
			f.Reset = wait
		}
	}
	return found
}

func (m *member) isNamed() bool {
	return m.key == "" && (m.value.kind == text || m.value.kind == token) && m.value.text != ""
}

// quotaUnit reads a policy's qu. One that is no word must not be taken for
// requests.
func quotaUnit(m *member) string {
	if unit := unitOf(m.param("qu").text); unit != "" {
		return unit
	}
	return "other"
}

func byName(found []finding, name string) *finding {
	for i := range found {
		if found[i].Name == name {
			return &found[i]
		}
	}
	return nil
}

// policies reads "burst";q=100;w=60, and 100;w=60 of the earlier forms.
func policies(members []member) []policy {
	var all []policy
	for _, m := range members {
		p := policy{unit: quotaUnit(&m), window: window(m.param("w").text, time.Second)}
		limit := m.value
		if m.isNamed() {
			p.name, limit = m.value.text, m.param("q")
		}
		var ok bool
		if p.limit, ok = count(limit.text); ok && limit.kind == number && m.key == "" {
			all = append(all, p)
		}
	}
	return all
}

func policyQuota(source string, p policy) Quota {
	return Quota{Name: p.name, Unit: p.unit, Limit: p.limit, Remaining: Unknown, Reset: Unknown, Window: p.window, Source: source}
}

// policyList keeps the policies without names for the limit that they belong to.
func (g *group) policyList(members []member) {
	for _, p := range policies(members) {
		if p.name == "" {
			g.policies = append(g.policies, p)
		}
	}
}

// dictionary reads limit=100, remaining=50, reset=30, the draft's RateLimit of
// 2023.
func (g *group) dictionary(members []member) {
	for _, m := range members {
		switch {
		case m.value.kind != number:
		case m.key == "limit":
			g.limits.add(m.value.text)
		case m.key == "remaining":
			g.remaining.add(m.value.text)
		case m.key == "reset":
			g.resets = append(g.resets, m.value.text)
		}
	}
}

// limitList reads a limit with the policies that the draft of 2021 writes
// behind it: 10, 10;w=1, 50;w=60. A further number without a window is no
// policy: what 1,000 means is not known.
func (g *group) limitList(f *field) {
	for i, m := range f.members() {
		p := policies([]member{m})
		if len(p) == 0 || p[0].name != "" {
			continue
		}
		if i == 0 || p[0].window == 0 {
			g.limits.add(m.value.text)
		}
		if p[0].window != 0 {
			if m.param("qu").text == "" {
				p[0].unit = g.unit
			}
			g.policies = append(g.policies, p[0])
		}
	}
}
