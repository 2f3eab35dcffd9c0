package throttle

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Outlook is what the next task of a scope meets: how its rules stand, how fast they
// go on, and who waits for them.
type Outlook struct {
	// At is the Redis server's time.
	At time.Time
	// Waiting is how many requests stand in the scope's own line: the sum of its tasks'
	// costs, of those by unit their requests.
	Waiting int64
	// Rules has one entry for each rule on the scope's path that holds now, outermost first.
	Rules []RuleOutlook
	// Until is when other rules hold, by the server's clock; zero where none holds in
	// certain hours only.
	Until time.Time
}

// RuleOutlook is one rule of an Outlook.
type RuleOutlook struct {
	// RuleState is what Peek says for one unit.
	RuleState
	// Units come back every Per while tasks wait for them, the pad and the margin
	// included. Units is 0 where no clock gives any: a suspended rule, a concurrency
	// rule.
	Units int64
	Per   time.Duration
	// Rest is how long the period of a Calendar still lasts, and Spread that what it has
	// left is spread over that. Without meaning with any other rule.
	Rest   time.Duration
	Spread bool
	// Own is how many of the rule's units stand in the scope's own line.
	Own int64
	// Waiting is how many units stand in lines under the rule, and Lines how many
	// lines those are, the scope's own included.
	Waiting, Lines int64
	// Released is how many units those will take who have been released from lines
	// under the rule, or were sent past them, and have not come yet.
	Released int64
}

// Outlook returns what the next task of a scope meets, and changes nothing. It costs
// two round trips. Its errors are those of Peek.
func (l *Limiter) Outlook(ctx context.Context, scope string) (Outlook, error) {
	p, err := l.plans.of(scope)
	if err != nil {
		return Outlook{}, err
	}
	d, err := l.peek(ctx, p, Request{Scope: scope, Cost: defaultCost, ID: NewID()})
	if err == nil && p.stale(d.At) {
		if p = l.plans.again(p, d.At); p == nil {
			return Outlook{At: d.At}, nil
		}
	}
	if err != nil || len(d.Rules) != len(p.bounds) {
		at := time.Now()
		if !d.At.IsZero() {
			at = d.At
		}
		return Outlook{At: at, Until: p.changes()}, err
	}
	out := Outlook{At: d.At, Until: p.changes(), Rules: make([]RuleOutlook, len(d.Rules))}
	for i := range d.Rules {
		r := RuleOutlook{RuleState: d.Rules[i]}
		r.Units, r.Per = pace(p.bounds[i].Rule, l.cfg.Pad)
		r.calendar(p.bounds[i].Rule, d.At)
		out.Rules[i] = r
	}
	if err := l.countWaiting(ctx, p, &out); err != nil {
		return Outlook{}, unavailable(ctx, "look at the lines of", scope, err)
	}
	return out, nil
}

// countWaiting reads the sums that the scripts keep, and who has been released; see
// lua/include/turns/lines.lua.
func (l *Limiter) countWaiting(ctx context.Context, p *plan, out *Outlook) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	if l.grants {
		return l.countTree(ctx, p, out)
	}
	own := "L" + scopePath(p.scope.String())
	fields := []string{own}
	for i, key := range p.keys {
		name := key[len(p.provider):]
		fields = append(fields, "U"+name, "N"+name, own)
		if unit := p.states[i].Unit; unit != "" && unit != Requests {
			fields[len(fields)-1] += "\x00" + unit
		}
	}
	var sums *redis.SliceCmd
	var released *redis.MapStringStringCmd
	err := ReadFromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		sums, released = pipe.HMGet(ctx, p.provider+"!at", fields...), pipe.HGetAll(ctx, outKey(p.provider))
		return nil
	})
	if err != nil {
		return err
	}
	out.Waiting = sum(sums.Val()[0])
	for i := range out.Rules {
		at := sums.Val()[1+3*i:]
		out.Rules[i].Waiting, out.Rules[i].Lines, out.Rules[i].Own = sum(at[0]), sum(at[1]), sum(at[2])
	}
	for who, when := range released.Val() {
		if released, ok := unpack(when); ok && out.At.UnixMicro()-released < onItsWay.Microseconds() {
			out.release(p, who)
		}
	}
	return nil
}

// onItsWay is how long one that was released is expected to come.
const onItsWay = 3 * time.Second

// release counts one, a field of the scripts' hash, under the rules of the path that
// are its own too.
func (o *Outlook) release(p *plan, who string) {
	scope, ticket, _ := strings.Cut(who, "\x00")
	place := readPlace("", ticket)
	for i, key := range p.keys {
		level, _, _ := strings.Cut(key[len(p.provider):], ":")
		if strings.HasPrefix(scope+"/", level+"/") {
			o.Rules[i].Released += place.under(p.bounds[i].Rule)
		}
	}
}

// unpack reads what scripts write in seven bytes.
func unpack(packed string) (n int64, ok bool) {
	if len(packed) < 7 {
		return 0, false
	}
	for i := range 7 {
		n = n<<8 | int64(packed[i])
	}
	return n, true
}

// sum reads a number of units or lines; none is 0.
func sum(v any) int64 {
	n, _ := strconv.ParseInt(text(v), 10, 64)
	return max(0, n)
}

// calendar tells of a calendar's periods.
func (r *RuleOutlook) calendar(rule Rule, at time.Time) {
	if rule.Algorithm != Calendar || rule.Limit == 0 {
		return
	}
	of := rule.calendar().around(at)
	r.Units, r.Per, r.Spread = rule.Limit, us(of.next-of.to), rule.Spread
	r.Rest = us(of.to - at.UnixMicro())
}

// pace returns how many units a rule admits in how long while tasks wait for it.
func pace(r Rule, pad time.Duration) (units int64, per time.Duration) {
	kind, n := ruleParams(r, pad)
	if r.Limit == 0 {
		return 0, 0
	}
	switch kind {
	case 'T':
		rate, unit, slack := n[0], n[1], n[3]
		// Where one unit is all that the slack leaves room for, it is waited for
		// with each.
		short := max(0, slack*rate-(n[2]-1)*unit)
		return rate, time.Duration(unit+short) * time.Microsecond
	case 'S':
		cells := (n[1] + n[2] - 1) / n[2] // a unit leaves at the end of its cell
		return n[0], time.Duration(cells*n[2]) * time.Microsecond
	case 'F':
		return n[0], time.Duration(n[1]) * time.Microsecond
	default:
		return 0, 0
	}
}
