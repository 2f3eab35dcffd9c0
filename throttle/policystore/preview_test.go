package policystore

import (
	"errors"
	"strings"
	"testing"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
)

// "Preview returns what would be in force after a Holder had published p", for whatever stands there, "and changes nothing".
func TestPreview(t *testing.T) {
	t.Parallel()
	ours := policyOf(t, strings.Replace(file, "limit: 20,", "limit: 30,", 1))
	for name, prepare := range map[string]func(t *testing.T, s *Store){
		"nothing":       func(*testing.T, *Store) {},
		"another file":  func(t *testing.T, s *Store) { publish(t, s, policyOf(t, file)) },
		"the same file": func(t *testing.T, s *Store) { publish(t, s, ours) },
		"live changes": func(t *testing.T, s *Store) {
			publish(t, s, policyOf(t, file))
			must(t, set(s, anna, "payments", "account", "limit=7"), paused(s, anna, "search"))
		},
		"an import": func(t *testing.T, s *Store) {
			publish(t, s, policyOf(t, file))
			must(t, second(s.Import(t.Context(), anna, policyOf(t, "limits: {p: {owner: x}}"), "f", true)))
		},
		"a newer file that nobody has": func(t *testing.T, s *Store) {
			publish(t, s, ours)
			publish(t, s, policyOf(t, file))
		},
		"a newer file": func(t *testing.T, s *Store) {
			publish(t, s, ours)
			_, _, err := NewHolder(s, "worker two").Publish(t.Context(), policyOf(t, file), nil)
			must(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, rdb := newStore(t)
			prepare(t, s)
			stood := rdb.HGetAll(t.Context(), s.key).Val()
			before, err := s.Preview(t.Context(), ours)
			must(t, err)
			if is := rdb.HGetAll(t.Context(), s.key).Val(); len(is) != len(stood) || is[currentField] != stood[currentField] {
				t.Errorf("%v, and before %v", is, stood)
			}
			_, _, err = NewHolder(s, "worker one").Publish(t.Context(), ours, nil)
			must(t, err)
			if is := s.nowSays(t); is != string(limitsyaml.Format(before)) {
				t.Errorf("foreseen:\n%s\nand it is\n%s", limitsyaml.Format(before), is)
			}
		})
	}
	none, _ := newStore(t)
	if _, err := none.Preview(t.Context(), nil); !errors.Is(err, ErrNone) {
		t.Error(err)
	}
}

func publish(t *testing.T, s *Store, p *policy.Policy) {
	t.Helper()
	_, _, err := s.PublishFile(t.Context(), "worker zero", p, nil)
	must(t, err)
}
