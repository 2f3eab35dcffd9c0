package policy

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/duration"
	"github.com/headway-go/headway/throttle/upstream"
)

// Pool is a set of members, such as API keys, each with limits of its own: a task below the pool's level starts when the rules of
// its path and those of one member admit it, and is charged to that member. The zero Pool is none. Source: docs/pools.md
type Pool struct {
	// Members are at least 1 and at most 100.
	Members []Member
	// Choose is how one of the members with room is chosen. Defaults to ChooseSpread.
	Choose Choose
	// Affinity is what keeps to the same member while that has room. Defaults to AffinityNone. It needs ChooseSpread.
	Affinity Affinity
	// AffinityWait is how long a tenant's tasks in a queue wait for their member while another one has room, at most 24 hours; for as
	// long after that they take any. Defaults to 0. It needs AffinityTenant.
	AffinityWait time.Duration
	// OverflowAfter is how much later a member may start a task before the next one in the list takes it, at most 24 hours. What no
	// clock tells counts as later: a budget that is used up, or places that are all taken. Defaults to 0. It needs ChooseDrain.
	OverflowAfter time.Duration
	// Quarantine is how long a member gets no calls after an answer that its key is not accepted or has no credit (401, 402), 1 minute
	// to 24 hours; then one call tries it, and others follow if that is accepted. Defaults to an hour.
	Quarantine time.Duration
}

// Member is a member of a pool.
type Member struct {
	// Name is its alias, never a secret. Its rules are those of the scope "@" + Name below the pool's level, without what "*" says
	// there; "@*" is any member. A name "team/key1" is the scope @team/key1, so members can share the rules of @team.
	Name string
	// Weight divides the starts among members with room, in proportion, 1 to 1000; to about a percent. Defaults to 1. It needs
	// ChooseSpread.
	Weight int64
	// Priority goes first where it is higher, -100 to 100: others start only what finds no room there. Defaults to 0.
	Priority int64
}

// Choose is how a pool chooses among members with room.
type Choose string

// The ways to choose a member.
const (
	// ChooseSpread spreads starts over the members, by their weights.
	ChooseSpread Choose = "spread"
	// ChooseDrain takes the first member in the list that has room, or has it within OverflowAfter.
	ChooseDrain Choose = "drain"
)

// Affinity is what keeps to one member of a pool.
type Affinity string

// What can keep to one member of a pool.
const (
	AffinityNone Affinity = ""
	// AffinityTenant has tasks of the same name right below the pool's level use the same member while it has room.
	AffinityTenant Affinity = "tenant"
)

const (
	memberMark   = "@" // begins the name of a member's scope
	anyMember    = memberMark + anyName
	mostPriority = 100

	usualQuarantine, leastQuarantine, mostQuarantine = time.Hour, time.Minute, 24 * time.Hour

	mostAffinityWait, mostOverflow = 24 * time.Hour, 24 * time.Hour
)

// MembersRule stands in the place of a rule's name where tasks wait for a member of the pool at a level. No rule can have it.
const MembersRule = "/members"

func hasPool(t *tree) bool { return len(t.Pool.Members) > 0 }

// isMember reports whether a name is that of a member's scope, given the trees of the level above it: elsewhere @acme is a name as others.
func isMember(name string, above []*tree) bool {
	return strings.HasPrefix(name, memberMark) && lastWith(above, hasPool) != nil
}

// MemberScope returns the scope of a member of the pool at a level, without a check.
func MemberScope(level Scope, member string) Scope {
	return Scope{level.text + "/" + memberMark + member}
}

// PoolOf returns the pool on a scope's path, and its level; the zero Pool for none. If there are several, the outermost counts. A scope
// at or below a member's has none: it spends from that member. Costs as much as Match.
func (p *Policy) PoolOf(s Scope) (level Scope, pool Pool) {
	if level, pool, member := p.poolAbove(s); !member {
		return level, pool
	}
	return Scope{}, Pool{}
}

// poolAbove returns the outermost pool on a scope's path, and whether the scope is at or below a member of it.
func (p *Policy) poolAbove(s Scope) (level Scope, pool Pool, member bool) {
	p.visit(s, func(at Scope, layers []*tree) {
		if len(pool.Members) > 0 {
			member = member || level == at.Prefix(at.Len()-1) && strings.HasPrefix(at.last(), memberMark)
		} else if t := lastWith(layers, hasPool); t != nil {
			level, pool = at, t.Pool
		}
	})
	return level, pool, member
}

// quarantine returns what the answers mean by which an API turns a member of the pool away. A 403 may be about the call alone.
func (p Pool) quarantine() *upstream.Table {
	wait := cmp.Or(p.Quarantine, usualQuarantine)
	return &upstream.Table{Cases: []upstream.Case{
		{Status: http.StatusUnauthorized, Wait: wait, Scope: upstream.ScopeHere},
		{Status: http.StatusPaymentRequired, Wait: wait, Scope: upstream.ScopeHere},
	}}
}

// PoolPattern returns the place in the policy of the pool at a level, such as github or tenants/*; empty for none. It does no I/O.
func (p *Policy) PoolPattern(level Scope) (pattern string) {
	p.settings(level, hasPool, func(at Scope, t *tree) {
		if at == level {
			pattern = t.path
		}
	})
	return pattern
}

// MatchMember returns the rules of a member of the pool at a level, outermost first, without those of that level and above it, and
// without pauses that have ended at a time. Costs as much as Match.
func (p *Policy) MatchMember(level Scope, member string, at time.Time) []MatchedRule {
	bounds, _ := p.resolve(MemberScope(level, member), at)
	return slices.DeleteFunc(bounds, func(b MatchedRule) bool { return b.Scope.Len() <= level.Len() })
}

// pool checks the pool of a scope, and that the scopes of members are those of members. above is whether a pool stands above it.
func (c *checker) pool(s ScopeConfig, scope *Source, path string, level int, above bool) {
	pool, source, at := s.Pool, scope.under("pool"), path+".pool"
	isSet := len(pool.Members) > 0 || pool.Choose != "" || pool.Affinity != "" || pool.AffinityWait != 0 || pool.OverflowAfter != 0 || pool.Quarantine != 0
	switch {
	case !isSet:
		return
	case above:
		c.add(source.place(), at, "pool stands below another pool; keep one of the two")
	case len(pool.Members) == 0:
		if source == nil { // else its reader has said so
			c.add(source.place(), at, "pool has no members; name one, or remove the pool")
		}
	case len(pool.Members) > maxNames:
		c.add(source.under("members").item(maxNames).place(), at+".members", "members are %d; the most is %d", len(pool.Members), maxNames)
	}
	c.word(source.field("choose", string(pool.Choose), pool.Choose != ""), at+".choose", "pool.choose")
	affinity := source.field("affinity", string(pool.Affinity), pool.Affinity != "")
	c.word(affinity, at+".affinity", "pool.affinity")
	if affinity.good() && pool.Choose == ChooseDrain {
		c.add(affinity.at, at+".affinity", "affinity stands with choose: drain, which takes the same member for all; remove one of the two")
	}
	keeps := source.field("affinity_wait", duration.Format(pool.AffinityWait), pool.AffinityWait != 0)
	switch {
	case !keeps.good():
	case pool.Affinity == AffinityNone:
		c.add(keeps.at, at+".affinity_wait", "affinity_wait stands without an affinity; write affinity: tenant, or remove it")
	case pool.AffinityWait < 0 || pool.AffinityWait > mostAffinityWait:
		c.add(keeps.at, at+".affinity_wait", "affinity_wait is %s; it must be at most %s", keeps.text, duration.Format(mostAffinityWait))
	}
	overflow := source.field("overflow_after", duration.Format(pool.OverflowAfter), pool.OverflowAfter != 0)
	switch {
	case !overflow.good():
	case pool.Choose != ChooseDrain:
		c.add(overflow.at, at+".overflow_after", "overflow_after stands without choose: drain, which has a next member; write that, or remove it")
	case pool.OverflowAfter < 0 || pool.OverflowAfter > mostOverflow:
		c.add(overflow.at, at+".overflow_after", "overflow_after is %s; it must be at most %s", overflow.text, duration.Format(mostOverflow))
	}
	wait := source.field("quarantine", duration.Format(pool.Quarantine), pool.Quarantine != 0)
	if wait.good() && (pool.Quarantine < leastQuarantine || pool.Quarantine > mostQuarantine) {
		c.add(wait.at, at+".quarantine", "quarantine is %s; it must be %s to %s", wait.text, duration.Format(leastQuarantine), duration.Format(mostQuarantine))
	}
	for i, m := range pool.Members[:min(len(pool.Members), maxNames)] {
		c.member(pool, i, m, source.under("members").item(i), at+".members["+strconv.Itoa(i)+"]", level)
	}
	for name := range s.Scopes {
		c.memberScope(pool, name, scope.under("scopes").under(name), diag.PathTo(path+".scopes", name))
	}
}

// member checks one member.
func (c *checker) member(pool Pool, i int, m Member, from *Source, path string, level int) {
	if from != nil && from.Bad {
		return
	}
	reason := ""
	for name := range strings.SplitSeq(m.Name, "/") {
		if reason = diag.NameReason(name); reason == "" && name == anyName {
			reason = `is no name that a member can have; "@*" of scopes has the rules of all members`
		}
		if reason != "" {
			break
		}
	}
	switch {
	case reason != "":
	case strings.HasPrefix(m.Name, memberMark):
		reason = `begins with "@", as its scope does; write the alias alone`
	case level+strings.Count(m.Name, "/")+1 > maxLevels:
		reason = "stands below level " + strconv.Itoa(maxLevels) + ", the last that has names"
	case slices.ContainsFunc(pool.Members[:i], func(o Member) bool { return o.Name == m.Name }):
		reason = "is there already; keep one of the two"
	}
	if reason != "" {
		c.add(from.place(), path, "member %s %s", quote(m.Name), reason)
	}
	if weight := from.field("weight", "", m.Weight != 0); weight.good() && pool.Choose == ChooseDrain {
		c.add(weight.at, path+".weight", "weight stands with choose: drain, which heeds none; write a priority, or remove it")
	}
	c.weight(m.Weight, from, path)
	priority := from.field("priority", strconv.FormatInt(m.Priority, 10), m.Priority != 0)
	if priority.good() && (m.Priority < -mostPriority || m.Priority > mostPriority) {
		c.add(priority.at, path+".priority", "priority is %s; it must be -%d to %d", priority.text, mostPriority, mostPriority)
	}
}

// memberScope checks that a scope right below a pool is no misspelt member's.
func (c *checker) memberScope(pool Pool, name string, from *Source, path string) {
	alias, is := strings.CutPrefix(name, memberMark)
	if !is || name == anyMember {
		return
	}
	var first []string
	for _, m := range pool.Members {
		outer, _, _ := strings.Cut(m.Name, "/")
		first = append(first, outer)
	}
	if !slices.Contains(first, alias) {
		c.add(from.place(), path, "%s is no member of the pool; %s", quote(name), diag.Meant(alias, first))
	}
}

// withDefaults returns a pool with its defaults written out.
func (p Pool) withDefaults() Pool {
	if len(p.Members) == 0 {
		return Pool{}
	}
	p.Members = slices.Clone(p.Members)
	if p.Choose == "" {
		p.Choose = ChooseSpread
	}
	for i := range p.Members {
		if p.Choose == ChooseSpread {
			p.Members[i].Weight = max(p.Members[i].Weight, defaultShare)
		}
	}
	return p
}
