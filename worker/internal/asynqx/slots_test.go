package asynqx

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// starts gives n tasks of a tenant slots, and returns those that may start.
func (s *Slots) starts(tenant string, n int) (all []*Slot) {
	for i := range n {
		key := fmt.Sprint(tenant, i)
		s.comes(key)
		one := s.take(key)
		if one.StartsFor(tenant, false) {
			one.Runs()
			all = append(all, one)
			continue
		}
		one.Leave()
	}
	return all
}

// admits says whether a task may be taken now.
func (s *Slots) admits() bool {
	changed, _ := s.full()
	return changed == nil
}

// "One tenant alone has all of them", and when it has had them for a moment others have half as many more.
func TestSlotsBesideOneTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(8)
		hog := s.starts("a", 8)
		if len(hog) != 8 || s.admits() {
			t.Fatalf("%d tasks of one tenant start, and more are taken: %t", len(hog), s.admits())
		}
		<-time.After(slotLasts)
		if !s.admits() || s.beyond() != 4 {
			t.Fatalf("others have %d slots beside it", s.beyond())
		}
		if !s.refuses("a", false) || s.refuses("b", true) {
			t.Error("another task of the tenant may start, or none of another's")
		}
		others := s.starts("b", 3)
		if more := len(s.starts("a", 1)); len(others) != 3 || more != 0 {
			t.Fatalf("%d tasks of another start, and %d of the first", len(others), more)
		}
		if others = append(others, s.starts("b", 2)...); len(others) != 4 || s.admits() {
			t.Fatalf("%d tasks of another start, beyond half", len(others))
		}
		for i, one := range hog {
			if relieves := one.Leave(); relieves != (i == 4) {
				t.Errorf("after %d have ended the tenant may start again: %t", i+1, relieves)
			}
		}
		if more := len(s.starts("a", 8)); more != 4 {
			t.Errorf("%d more start beside four of another's", more)
		}
	})
}

// Those that come and go are never more than the slots, and whose they were is forgotten.
func TestSlotsAreKept(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(seed, 1))
			s := NewSlots(1 + draw.IntN(9))
			var all []*Slot
			for range 2000 {
				switch draw.IntN(4) {
				case 0:
					<-time.After(time.Duration(draw.Int64N(int64(slotLasts / 2))))
				case 1:
					if len(all) > 0 {
						i := draw.IntN(len(all))
						all[i].Leave()
						all[i].Leave() // once is enough
						all[i] = all[len(all)-1]
						all = all[:len(all)-1]
					}
				default:
					if s.admits() {
						all = append(all, s.starts(string(rune('a'+draw.IntN(3))), 1)...)
					}
				}
				if len(all) > s.Most() || s.counted() > s.size {
					t.Fatalf("seed %d: %d tasks run, %d of them count, in %d slots", seed, len(all), s.counted(), s.size)
				}
			}
			for _, one := range all {
				one.Leave()
			}
			if s.taken != 0 || len(s.held) != 0 || s.beyond() != 0 {
				t.Errorf("seed %d: %d are taken by %d at the end", seed, s.taken, len(s.held))
			}
		})
	}
}

// asynq ends some tasks before a handler has them, such as one whose deadline has passed.
func TestSlotsOfTasksThatDoNotCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(2)
		s.comes("asynq:{default}:t:1")
		s.comes("asynq:{default}:t:2")
		if s.admits() {
			t.Error("a third is taken at once")
		}
		time.AfterFunc(slotComes/2, func() { s.ended("asynq:{default}:t:2") })
		began := time.Now()
		if !s.admit(nil) || time.Since(began) != slotComes/2 {
			t.Errorf("a third is taken after %s, when asynq has ended one", time.Since(began))
		}
		<-time.After(slotComes)
		s.comes("asynq:{default}:t:4")
		if !s.admits() {
			t.Error("asynq gave up the first without a word, and its slot is taken for good")
		}
		s.ended("asynq:{default}:t:4")
		stopped := make(chan struct{})
		s.starts("a", 2)
		time.AfterFunc(time.Hour, func() { close(stopped) })
		if s.held["a"].Len() != 2 || !s.admit(stopped) {
			t.Error("nothing is taken beside a tenant that lasts")
		}
		s.starts("b", 2)
		if s.admit(stopped) {
			t.Error("a task is taken for which there is no slot")
		}
	})
}
