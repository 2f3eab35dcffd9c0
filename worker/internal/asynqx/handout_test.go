package asynqx

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
)

// "hands each to asynq some milliseconds before its start": in the order of their times, whatever the order in which they
// came and whichever queue is asked first, and never sooner.
func TestHandout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAsker(100*time.Millisecond, "high", "low")
		a.run(t)
		at := func(queue, message string, after time.Duration) *Handout {
			return &Handout{Queue: queue, Message: message, ID: message, Lease: "7", At: a.began.Add(after)}
		}
		<-time.After(time.Second)
		a.gate.Put(at("low", "c", 1300*time.Millisecond), at("high", "a", 1100*time.Millisecond))
		a.gate.Put(at("low", "b", 1200*time.Millisecond))
		<-time.After(time.Second)
		a.since()
		if want := []string{"a 1.1s", "b 1.2s", "c 1.3s"}; !slices.Equal(a.got, want) {
			t.Errorf("handed out %q, want %q", a.got, want)
		}
	})
}

// "A task that its server has no slot for within a quarter of a second, and all that a stopping server has, go into pending."
func TestHandoutGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := NewPacer(time.Hour)
		var back []string
		g.giveBack = func(list []*Handout) {
			for _, one := range list {
				back = append(back, one.ID)
			}
		}
		now := time.Now()
		g.Put(&Handout{Queue: "q", ID: "late", At: now}, &Handout{Queue: "q", ID: "ahead", At: now.Add(time.Minute)})
		<-time.After(handoutStays)
		synctest.Wait()
		if !slices.Equal(back, []string{"late"}) {
			t.Errorf("given back: %q", back)
		}
		asked := make(chan struct{})
		go g.look(context.Background(), "q", times("7", func() *redis.Cmd {
			<-asked
			return redis.NewCmdResult("found", nil)
		}))
		synctest.Wait()
		g.Stop()
		time.AfterFunc(time.Second, func() { close(asked) })
		var left []string
		for _, one := range g.Withdraw() {
			left = append(left, one.ID+one.Message)
		}
		slices.Sort(left)
		if want := []string{"ahead", "found"}; !slices.Equal(left, want) {
			t.Errorf("a stopped gate had %q, want %q: the one ahead, and what Redis was being asked for", left, want)
		}
		if g.Put(&Handout{Queue: "q", ID: "too late", At: now}) {
			t.Error("a stopped gate took a task")
		}
	})
}

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
	changed := s.full()
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

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must
