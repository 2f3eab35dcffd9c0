package throttle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/throttle/policy"
)

// ErrGrantNotFound says that no grant is stored under an id of a scope: none was saved, its time has ended, or it was refunded.
var ErrGrantNotFound = errors.New("throttle: no grant is stored under this id")

// kept is a grant as Redis stores it. One of SaveGrant is without places of concurrency rules.
type kept struct {
	ID    string       `json:"id"`
	Start int64        `json:"start"` // by the server's clock, µs
	Costs policy.Costs `json:"costs,omitempty"`
	Cost  int64        `json:"cost,omitempty"`
	Of    string       `json:"member,omitempty"` // wire.Member.Key
	Probe bool         `json:"probe,omitempty"`
	Rules []keptRule   `json:"rules"`
}

type keptRule struct {
	Name  string `json:"name"` // wire.RuleName
	Kind  string `json:"kind"`
	Unit  string `json:"unit"`
	Units int64  `json:"units"`
	Place int64  `json:"place"`
	Over  int64  `json:"over,omitempty"`
}

// SaveGrant stores a grant in Redis under an id, such as a task's, for the time stay, so that any process can find it with
// LoadGrant. It is for costs that become known later, by a webhook or a batch API. It replaces another grant under the id. Units
// can be given back for a day at most; what is settled counts as long as the grant is stored. Places of concurrency rules are not
// stored.
//
// The id has 1 to 1024 bytes. The error says what is invalid, or wraps ErrUnavailable. Costs one round trip, none for a grant
// that took nothing or was made in an outage.
func (l *Limiter) SaveGrant(ctx context.Context, g Grant, id string, stay time.Duration) error {
	return l.save(ctx, g, id, stay, false)
}

// SaveLease is SaveGrant with the grant's places under concurrency rules, instead of Lease: nothing renews them but Renew, in any
// process, of the grant that LoadGrant returns. Release frees them, and so does Refund. Unless they are renewed, they expire after
// Grant.LeaseTime.
func (l *Limiter) SaveLease(ctx context.Context, g Grant, id string, stay time.Duration) error {
	return l.save(ctx, g, id, stay, true)
}

func (l *Limiter) save(ctx context.Context, g Grant, id string, stay time.Duration, places bool) error {
	if id == "" || len(id) > maxWaiterBytes {
		return fmt.Errorf("throttle: SaveGrant: the id has %d bytes; give it 1 to %d", len(id), maxWaiterBytes)
	}
	if stay < time.Millisecond || stay > policy.MaxTime {
		return fmt.Errorf("throttle: SaveGrant: stay is %s; give it 1ms to %s", stay, policy.MaxTime)
	}
	if g.Zero() || g.local {
		return nil
	}
	p := g.plan
	k := kept{ID: g.id, Start: g.start, Costs: g.price.costs, Cost: g.price.each, Of: p.memberKey(), Probe: places && g.probe, Rules: []keptRule{}}
	at := g.placesIn(p)
	for i, c := range g.charged(p, nil) {
		r := p.Rules[i].Rule
		if r.Algorithm == policy.Concurrency && !places {
			continue
		}
		k.Rules = append(k.Rules, keptRule{wire.RuleName(p.Rules[i]), string(r.Algorithm), r.Unit, c.Units, at[i], c.Over})
	}
	text, err := json.Marshal(k)
	if err != nil {
		return fmt.Errorf("throttle: SaveGrant: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	g.known.keep(time.Now().Add(stay))
	_, err = l.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, keptKey(p, id), text, stay)
		pipe.PExpire(ctx, p.Prefix+"s:"+g.id, g.remembered())
		return nil
	})
	if err != nil {
		return wire.Unavailable(ctx, "store a grant of", g.scope, err)
	}
	return nil
}

// Renew holds the places of a grant that SaveLease has stored for another Grant.LeaseTime, and keeps the grant stored for as long.
// The error is ErrLeaseLost if any of them had expired or was freed, and may be another run's by now; or it wraps ErrUnavailable.
// Costs one round trip, and one more where the grant would not be stored for long enough.
func (l *Limiter) Renew(ctx context.Context, g Grant) error {
	if g.Zero() || g.local {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	p, rules, err := l.report(ctx, g, "kept", 0, nil, false)
	switch stay := 2 * g.LeaseTime(); {
	case err != nil:
		return wire.Unavailable(ctx, "renew a lease of", g.scope, err)
	case p != nil && len(rules) < len(p.Rules):
		return ErrLeaseLost
	case g.kept != "" && g.known.left() < stay:
		ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		defer cancel()
		if err := l.rdb.PExpire(ctx, g.kept, stay).Err(); err != nil {
			return wire.Unavailable(ctx, "renew a lease of", g.scope, err)
		}
		g.known.keep(time.Now().Add(stay))
	}
	return nil
}

// Release frees the places of a grant that SaveLease has stored: its run is over. The units stay spent, and the grant stays stored,
// to be settled. It may be called more than once. The error wraps ErrUnavailable; the places then expire. Costs one round trip.
func (l *Limiter) Release(ctx context.Context, g Grant) error {
	if g.Zero() || g.local {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	_, _, err := l.report(ctx, g, "ended", max(0, time.Since(g.from)).Microseconds(), nil, true)
	if err != nil {
		return wire.Unavailable(ctx, "release a lease of", g.scope, err)
	}
	return nil
}

// LoadGrant returns a grant that SaveGrant or SaveLease, in any process, has stored under an id of a scope, to Settle, Refund, Renew
// or Release it. A Refund also ends its storage. It leaves out rules that are gone or have another algorithm by now. The error is a
// *policy.ScopeError, *policy.UnmatchedError or ErrGrantNotFound, or wraps ErrUnavailable. Costs one round trip.
func (l *Limiter) LoadGrant(ctx context.Context, scope, id string) (Grant, error) {
	p, err := l.plan(scope)
	if err != nil {
		return Grant{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	key := keptKey(p, id)
	var text *redis.StringCmd
	var left *redis.DurationCmd
	err = redisread.FromMaster(ctx, l.rdb, func(pipe redis.Pipeliner) error {
		text, left = pipe.Get(ctx, key), pipe.PTTL(ctx, key)
		return nil
	})
	if errors.Is(err, redis.Nil) {
		return Grant{}, fmt.Errorf("%w: %s of %s", ErrGrantNotFound, diag.Quote(id), diag.Quote(scope))
	} else if err != nil {
		return Grant{}, wire.Unavailable(ctx, "look for a grant of", scope, err)
	}
	var k kept
	if err := json.Unmarshal([]byte(text.Val()), &k); err != nil || k.ID == "" {
		return Grant{}, fmt.Errorf("%w: %s of %s cannot be read", ErrGrantNotFound, diag.Quote(id), diag.Quote(scope))
	}
	g := p.keptGrant(k, key)
	g.known.keep(time.Now().Add(left.Val()))
	return g, nil
}

// keptGrant makes a kept grant one again, under the rules as they are by now.
func (p *plan) keptGrant(k kept, key string) Grant {
	p = p.with(p.Pool.Member(k.Of))
	g := Grant{
		scope: p.Scope.Scope.String(), id: k.ID, plan: p, price: price{k.Cost, k.Costs}, start: k.Start, kept: key, known: &known{},
		places: make([]int64, len(p.Rules)), probe: k.Probe, from: p.clock.ToLocal(time.UnixMicro(k.Start)),
	}
	for i, b := range p.Rules {
		at := slices.IndexFunc(k.Rules, func(r keptRule) bool {
			return r.Name == wire.RuleName(b) && r.Kind == string(b.Rule.Algorithm) && r.Unit == b.Rule.Unit
		})
		if at < 0 {
			g.known.note(b, wire.Charged{}) // it took nothing of it
			continue
		}
		r := k.Rules[at]
		if g.places[i] = r.Place; r.Units != g.price.under(b.Rule) || r.Over > 0 {
			g.known.note(b, wire.Charged{Units: r.Units, Over: r.Over})
		}
	}
	return g
}

func keptKey(p *plan, id string) string { return p.Prefix + "k:" + p.Path + ":" + wire.Escape(id) }
