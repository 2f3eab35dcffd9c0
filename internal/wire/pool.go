package wire

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/headway-go/headway/throttle/policy"
)

// Pool is a pool compiled once for all scopes below its level. It never changes.
type Pool struct {
	Level   policy.Scope
	Members []Member
	// Overflow is how much later each may start a task before the next one takes it.
	Overflow time.Duration

	rules       PoolRules
	version     int64
	from, until int64 // as Scope.From and Until
	hours, most int64 // as of Scope
}

// Member is a member of a pool.
type Member struct {
	policy.Member
	Key    string               // its name as scripts have it: escaped
	Rules  []policy.MatchedRule // those that apply now, at its own levels, in the order of the text
	Paused []int                // the indexes of the pauses among them
	// Breakers are those of its own levels, outermost first.
	Breakers []policy.MatchedBreaker

	shape int64
}

// CompilePool returns a pool at a time, given all rules of each member.
func (c Compiler) CompilePool(level policy.Scope, pool policy.Pool, match func(member string) []policy.MatchedRule, at time.Time) *Pool {
	p := &Pool{Level: level, Overflow: pool.OverflowAfter, version: c.Version, until: Never, hours: Never}
	p.rules = PoolRules{
		Level: level.Len() - 1, Drain: pool.Choose == policy.ChooseDrain, Affine: pool.Affinity == policy.AffinityTenant,
		Wait: (pool.AffinityWait + pool.OverflowAfter).Microseconds(), // one of the two
	}
	for _, of := range pool.Members {
		s := &Scope{Until: Never, hours: Never, Most: math.MaxInt64}
		rules, shape := c.rules(s, match(of.Name), at)
		name := strings.TrimPrefix(Path("/"+of.Name), "/")
		_, _ = shape.Write([]byte(name))
		m := Member{Member: of, Key: name, Rules: s.Rules, Paused: s.Paused, shape: int64(shape.Sum64() >> 12)} //nolint:gosec // 52 bits
		p.Members = append(p.Members, m)
		p.rules.Members = append(p.rules.Members, MemberRules{Name: name, Weight: of.Weight, Priority: of.Priority, Shape: m.shape, Rules: rules})
		p.from, p.until, p.hours = max(p.from, s.From), min(p.until, s.Until), min(p.hours, s.hours)
		p.most = max(p.most, s.Most)
	}
	return p
}

// Member returns a member by its key, nil if there is none, or no pool.
func (p *Pool) Member(key string) *Member {
	if p == nil {
		return nil
	}
	i := slices.IndexFunc(p.Members, func(m Member) bool { return m.Key == key })
	if i < 0 {
		return nil
	}
	return &p.Members[i]
}

// With returns what applies at a scope to a task that was granted a member: the rules of its path, and those of the member. It has the
// text of the scope itself.
func (s *Scope) With(m *Member) *Scope {
	out := *s
	out.Member, out.Shape = m, s.Shape/2+m.shape
	out.Rules = append(slices.Clip(s.Rules), m.Rules...)
	out.Paused = slices.Clone(s.Paused)
	for _, i := range m.Paused {
		out.Paused = append(out.Paused, len(s.Rules)+i)
	}
	out.Breakers = append(slices.Clip(s.Breakers), m.Breakers...)
	return &out
}

// MemberPath returns the path of the member's node, "" for none.
func (s *Scope) MemberPath() string {
	if s.Member == nil {
		return ""
	}
	return Path(policy.MemberScope(s.Pool.Level, s.Member.Name).String())
}

// Check returns the error of a cost that no wait admits: under a rule of the path that applies now, or under the rules of every member.
// CheckAll heeds the path's rules of other hours too.
func (s *Scope) Check(charge func(policy.Rule) int64) error { return s.check(s.Rules, charge) }

// CheckAll is Check under the path's rules of any time of day.
func (s *Scope) CheckAll(charge func(policy.Rule) int64) error { return s.check(s.All, charge) }

func (s *Scope) check(rules []policy.MatchedRule, charge func(policy.Rule) int64) error {
	err := policy.CheckMatched(s.Scope, rules, charge)
	if err != nil || s.Pool == nil || s.Member != nil {
		return err
	}
	for _, m := range s.Pool.Members {
		if err = policy.CheckMatched(s.Scope, m.Rules, charge); err == nil {
			return nil
		}
	}
	return err
}

// Capped returns the costs of a task as they are charged at first, whichever member it gets: see policy.Costs.Capped.
func (s *Scope) Capped(costs policy.Costs) policy.Costs {
	costs = costs.Capped(s.All)
	if s.Pool != nil {
		for _, m := range s.Pool.Members {
			costs = costs.Capped(m.Rules)
		}
	}
	return costs
}

// Limited reports whether any rule or the members of a pool apply at the scope now.
func (s *Scope) Limited() bool { return len(s.Rules) > 0 || s.Pool != nil }

// PoolRules is a pool of a scope; see lua/include/pool.lua.
type PoolRules struct {
	Level         int // the number of names of its node
	Drain, Affine bool
	Wait          int64 // µs that a task waits for its own member, or with Drain for each before the next, while another has room
	Members       []MemberRules
}

// MemberRules is a member and its rules.
type MemberRules struct {
	Name             string // its path below the pool's node, escaped, without "/@"
	Weight, Priority int64
	Shape            int64 // of its rules, less than 2^52
	Rules            []Rule
}

// text returns the pool as scripts read it.
func (p PoolRules) text() []byte {
	tiers := p.tiers()
	const head = 18
	offsets := head
	for _, places := range tiers {
		offsets += 1 + len(places)
	}
	names := "\n"
	var parts []byte
	var starts []int
	for _, m := range p.Members {
		names += m.Name + "\n"
		starts = append(starts, len(parts))
		parts = append(append(parts, byte(len(m.Name)>>8), byte(len(m.Name))), m.Name...)
		parts = appendRules(seven(parts, m.Shape), m.Rules)
	}
	named := offsets + 3*len(p.Members)
	affine := byte(0)
	if p.Affine {
		affine = 1
	}
	b := seven([]byte{'M', byte(p.Level), byte(len(p.Members)), byte(len(tiers)), affine}, p.Wait)
	b = three(b, offsets+1, named+1)
	for _, places := range tiers {
		b = append(append(b, byte(len(places))), places...)
	}
	for _, at := range starts {
		b = three(b, named+len(names)+at+1)
	}
	return append(append(b, names...), parts...)
}

// three appends numbers of three bytes.
func three(b []byte, numbers ...int) []byte {
	for _, n := range numbers {
		b = append(b, byte(n>>16), byte(n>>8), byte(n))
	}
	return b
}

// mostPlaces is how many places the members of a tier have at most by their weights: each has one at least.
const mostPlaces = 150

// tiers returns the places of each tier, the highest first. A member has places in proportion to its weight; a prime number of them in
// all, so that any step comes by each, and 0 in those that are left over.
func (p PoolRules) tiers() (tiers [][]byte) {
	order := make([]int, len(p.Members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.Members[b].Priority, p.Members[a].Priority) })
	for len(order) > 0 {
		many := 1
		for many < len(order) && !p.Drain && p.Members[order[many]].Priority == p.Members[order[0]].Priority {
			many++
		}
		tiers = append(tiers, p.places(order[:many]))
		order = order[many:]
	}
	return tiers
}

func (p PoolRules) places(members []int) (places []byte) {
	divisor, sum := int64(0), int64(0)
	for _, i := range members {
		weight := max(p.Members[i].Weight, 1)
		divisor, sum = gcd(divisor, weight), sum+weight
	}
	for _, i := range members {
		n := max(p.Members[i].Weight, 1) / divisor
		if sum/divisor > mostPlaces {
			n = max(1, n*mostPlaces/(sum/divisor))
		}
		places = append(places, slices.Repeat([]byte{byte(i + 1)}, int(n))...)
	}
	for !isPrime(len(places)) {
		places = append(places, 0)
	}
	return places
}

func isPrime(n int) bool {
	for d := 2; d*d <= n; d++ {
		if n%d == 0 {
			return false
		}
	}
	return true
}
