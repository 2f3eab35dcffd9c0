package policystore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/redisread"
	"github.com/headway-go/headway/throttle/policy"
)

// tierPrefix begins the field of the hash that has the tier of a name. Tiers are beside the versions, not in them: a version has only what
// it has changed.
const tierPrefix = "t:"

const (
	// MaxTierChanges is how many names SetTiers changes at once.
	MaxTierChanges = 1000
	tierPage       = 1000 // how many fields one round trip reads
)

// Tier is the tier of a name, and in a Version a change of it.
type Tier struct {
	Scope  string `json:"scope"`
	Tier   string `json:"tier,omitempty"`   // empty for none
	Before string `json:"before,omitempty"` // in a Version: the tier that it had
}

// TierOf returns the tier that SetTiers has set, "" for none, as throttle.Config.TierOf wants it. Costs one round trip.
func (s *Store) TierOf(ctx context.Context, name policy.Scope) (string, error) {
	return s.field(ctx, s.rdb, tierPrefix+name.String())
}

// TierOr returns what answers with the tier that SetTiers has set, and otherwise as next does. A nil next knows no tier.
func (s *Store) TierOr(next policy.TierOf) policy.TierOf {
	if next == nil {
		return s.TierOf
	}
	return func(ctx context.Context, name policy.Scope) (string, error) {
		if tier, err := s.TierOf(ctx, name); err != nil || tier != "" {
			return tier, err
		}
		return next(ctx, name)
	}
}

// WithTiers returns a policy with the tiers that SetTiers has set, for as long as ctx. A name for which Redis does not answer has none.
func (s *Store) WithTiers(ctx context.Context, p *policy.Policy) *policy.Policy {
	if !p.Tiered() {
		return p
	}
	return p.WithTiers(func(name policy.Scope) string {
		tier, _ := s.TierOf(ctx, name)
		return tier
	})
}

// SetTiers sets the tiers of names, such as gold for payments/acme; "" removes one. Each tier must be one that the limits have above the
// name. Processes that Follow the limits have it when the version is in force. A rollback changes no tier. It goes without Edit.For. Its
// errors are those of Set, and ErrUnchanged. Costs some round trips.
func (s *Store) SetTiers(ctx context.Context, e Edit, tiers map[string]string) (Made, error) {
	e.For = 0
	names := slices.Sorted(maps.Keys(tiers))
	if len(names) > MaxTierChanges {
		return Made{}, refuse("%d tiers are too many at once; the most is %d", len(names), MaxTierChanges)
	}
	return s.edit(ctx, e, func(d *draft) error {
		var fields []string
		for _, name := range names {
			if err := d.mayHave(name, tiers[name]); err != nil {
				return err
			}
			fields = append(fields, tierPrefix+name)
		}
		if len(fields) == 0 {
			return ErrUnchanged
		}
		had, err := s.fields(ctx, s.rdb, fields...) // the edit begins anew if they change
		if err != nil {
			return err
		}
		for i, name := range names {
			if before := had[fields[i]]; before != tiers[name] {
				d.Tiers = append(d.Tiers, Tier{Scope: name, Tier: tiers[name], Before: before})
			}
		}
		switch len(d.Tiers) {
		case 0:
			return ErrUnchanged
		case 1:
			d.Change = strings.TrimSpace(fmt.Sprintf("tier %s %s", d.Tiers[0].Scope, d.Tiers[0].Tier))
			if d.Tiers[0].Tier == "" {
				d.Change += " removed"
			}
			if before := d.Tiers[0].Before; before != "" {
				d.Change += ", was " + before
			}
		default:
			d.Change = fmt.Sprintf("tiers of %d names, %s first", len(d.Tiers), d.Tiers[0].Scope)
		}
		return nil
	})
}

// mayHave refuses a tier that a name cannot have.
func (d *draft) mayHave(name, tier string) error {
	scope, err := policy.ParseScope(name)
	if err != nil || tier == "" {
		return err
	}
	return d.knows("", scope.Prefix(scope.Len()-1).String(), tier)
}

// knowsTiers refuses a place such as payments//gold of a tier that the limits do not have: most likely a name is missing.
func (d *draft) knowsTiers(place string) error {
	levels := policy.SplitPlace(place)
	for i, level := range levels {
		if tier, is := strings.CutPrefix(level, "/"); is {
			if err := d.knows(fmt.Sprintf("%s is a place of the tier %q, and ", place, tier), strings.Join(levels[:i], "/"), tier); err != nil {
				return err
			}
		}
	}
	return nil
}

// knows refuses a tier that the names right below a place cannot have. about begins the reason.
func (d *draft) knows(about, above, tier string) error {
	tiers := d.was.Tiers(above)
	switch {
	case above == "":
		return refuse("%stiers are of names below a provider, such as payments/acme", about)
	case len(tiers) == 0:
		return refuse("%sthe limits have no tiers below %q; write them beside its scopes, such as tiers: {%s: {}}", about, above, cmp.Or(tier, "gold"))
	case !slices.Contains(tiers, tier):
		return refuse("%s%s has no tier %q; %s", about, above, tier, diag.Meant(tier, tiers))
	}
	return nil
}

// writeTiers adds what a draft changes of tiers to its transaction.
func (s *Store) writeTiers(ctx context.Context, p redis.Pipeliner, changes []Tier) {
	for _, c := range changes {
		if c.Tier == "" {
			p.HDel(ctx, s.key, tierPrefix+c.Scope)
		} else {
			p.HSet(ctx, s.key, tierPrefix+c.Scope, c.Tier)
		}
	}
}

// Tiers iterates over the tiers that SetTiers has set for a scope and the names below it, or for all if it is empty, in no order. The last
// pair has an error if Redis did not answer. Costs one round trip for each 1000 tiers and versions.
func (s *Store) Tiers(ctx context.Context, scope string) iter.Seq2[Tier, error] {
	return func(yield func(Tier, error) bool) {
		for cursor, more := uint64(0), true; more; more = cursor > 0 {
			page, err := redisread.One(ctx, s.rdb, func(p redis.Pipeliner) *redis.ScanCmd {
				return p.HScan(ctx, s.key, cursor, tierPrefix+"*", tierPage)
			})
			if err != nil {
				yield(Tier{}, unavailable(ctx, "read", err))
				return
			}
			var texts []string
			texts, cursor = page.Val()
			for i := 0; i+1 < len(texts); i += 2 {
				name := strings.TrimPrefix(texts[i], tierPrefix)
				if (scope == "" || name == scope || strings.HasPrefix(name, scope+"/")) && !yield(Tier{Scope: name, Tier: texts[i+1]}, nil) {
					return
				}
			}
		}
	}
}

// tiersSince returns the names whose tiers versions after one have changed, up to v. Versions that are not kept are left out.
func (s *Store) tiersSince(ctx context.Context, number int64, v Version) (names []string) {
	versions := []Version{v}
	for number = max(number, v.Number-Kept); number+1 < v.Number; number++ {
		if between, err := s.Version(ctx, number+1); err == nil {
			versions = append(versions, between)
		} else if !errors.As(err, new(*VersionError)) && !errors.As(err, new(*DamagedError)) {
			break
		}
	}
	for _, v := range versions {
		for _, c := range v.Tiers {
			names = append(names, c.Scope)
		}
	}
	return names
}
