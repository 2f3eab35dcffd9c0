package upstream

import (
	"regexp"
	"strings"
	"time"
)

// maxMembers is the most members of a list that are read.
const maxMembers = 32

// A member is one of a structured field's list or dictionary (RFC 9651).
type member struct {
	key    string // in a dictionary
	value  bare
	params map[string]bare
}

// A bare is a value without parameters.
type bare struct {
	kind kind
	text string // without quotes and escapes
}

type kind byte

const (
	number kind = iota + 1
	text        // "quoted"
	token
	other // byte sequences, booleans, dates, which no field here has
)

// The syntax of a member. It is read leniently, one member at a time, so that a bad one hides no good one.
const (
	keyForm  = "[A-Za-z._!#$%&'*+^`|~/][A-Za-z0-9._!#$%&'*+^`|~:/-]*"
	bareForm = `"(?:[ !#-\[\]-~]|\\["\\])*"|[0-9-][0-9.-]*|:[^:]*:|[?@][0-9.-]+|` + keyForm
	// A name of a parameter may begin with a digit.
	paramForm = "[ \t]*;[ \t]*([A-Za-z0-9._!#$%&'*+^`|~:/-]+)(?:=(" + bareForm + "))?"
)

var (
	memberPattern = regexp.MustCompile("^(?:(" + keyForm + ")=)?(" + bareForm + ")((?:" + paramForm + ")*)[ \t]*(,|$)")
	paramPattern  = regexp.MustCompile(paramForm)
	unescape      = strings.NewReplacer(`\"`, `"`, `\\`, `\`)
)

// members reads a list or a dictionary. A malformed member is left out, up to its first comma. Unless s is whole, its last member
// may be cut, and is left out too.
func members(s string, whole bool) (found []member) {
	for range maxMembers {
		s = strings.TrimLeft(s, " \t,")
		m := memberPattern.FindStringSubmatch(s)
		if s == "" || m != nil && m[6] == "" && !whole {
			break
		}
		if m == nil {
			_, s, _ = strings.Cut(s, ",")
			continue
		}
		params := map[string]bare{} // the last one of a name counts
		for _, p := range paramPattern.FindAllStringSubmatch(m[3], -1) {
			params[p[1]] = bareOf(p[2])
		}
		found, s = append(found, member{m[1], bareOf(m[2]), params}), s[len(m[0]):]
	}
	return found
}

func bareOf(s string) bare {
	switch {
	case s == "" || strings.IndexByte(":?@", s[0]) >= 0:
		return bare{kind: other}
	case s[0] == '"':
		return bare{text, unescape.Replace(s[1 : len(s)-1])}
	case s[0] == '-' || '0' <= s[0] && s[0] <= '9':
		return bare{number, s}
	}
	return bare{token, s}
}

// draft reads the IETF draft's two fields in the form in which policies have names: RateLimit-Policy has the limits, RateLimit
// their state. A state without a policy stands for itself. Of two states of one name the first counts.
func (c clock) draft(fields []field) (found []finding) {
	byName := func(name string) *finding {
		for i := range found {
			if found[i].Name == name {
				return &found[i]
			}
		}
		return nil
	}
	for _, m := range fieldOf(fields, "ratelimit-policy").members() {
		if q, ok := m.policy(); ok && q.Name != "" && byName(q.Name) == nil {
			found = append(found, finding{q, currentRank, false})
		}
	}
	for _, m := range fieldOf(fields, "ratelimit").members() {
		remaining, ok := count(m.params["r"].text)
		if !m.isNamed() || !ok {
			continue
		}
		f := byName(m.value.text)
		if f == nil {
			found = append(found, finding{newQuota("ratelimit", m.value.text, m.unit(), Unknown, 0), currentRank, false})
			f = &found[len(found)-1]
		}
		if f.Remaining != Unknown {
			continue
		}
		f.Remaining = remaining
		if wait, ok := (clock{c.now, time.Second}).reset(m.params["t"].text); ok {
			f.Reset = wait
		}
	}
	for i := range found {
		found[i].Name = printable(found[i].Name)
	}
	return found
}

func (m member) isNamed() bool {
	return m.key == "" && (m.value.kind == text || m.value.kind == token) && m.value.text != ""
}

// unit reads a policy's qu. A text that is no word must not be taken for requests.
func (m member) unit() string {
	if unit := unitOf(m.params["qu"].text); unit != "" {
		return unit
	}
	return "other"
}

// policy reads "burst";q=100;w=60, and 100;w=60 of the earlier forms, whose quotas have no name.
func (m member) policy() (Quota, bool) {
	name, limit := "", m.value
	if m.isNamed() {
		name, limit = m.value.text, m.params["q"]
	}
	n, ok := count(limit.text)
	return newQuota("ratelimit", name, m.unit(), n, window(m.params["w"].text, time.Second)), ok && limit.kind == number && m.key == ""
}

// policyList keeps the policies without names for the limit that they belong to.
func (g *group) policyList(members []member) {
	for _, m := range members {
		if q, ok := m.policy(); ok && q.Name == "" {
			g.policies = append(g.policies, q)
		}
	}
}

// dictionary reads limit=100, remaining=50, reset=30, the draft's RateLimit of 2023.
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

// limitList reads a limit with the policies that the draft of 2021 writes behind it: 10, 10;w=1, 50;w=60. A further number
// without a window is no policy: what 1,000 means is not known.
func (g *group) limitList(members []member) {
	for i, m := range members {
		q, ok := m.policy()
		if !ok || q.Name != "" {
			continue
		}
		if i == 0 || q.Window == 0 {
			g.limits.add(m.value.text)
		}
		if q.Window != 0 {
			if m.params["qu"].text == "" {
				q.Unit = g.unit
			}
			g.policies = append(g.policies, q)
		}
	}
}
