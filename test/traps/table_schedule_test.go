package traps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// pitfall is one thing that went wrong in schedules of limited tasks, and the tests
// that show that it does not here: by directory and name, wherever the thing stands.
type pitfall struct {
	id    string
	wrong string
	tests []string
}

func in(tests ...string) []string { return tests }

// schedules are the pitfalls of giving limited tasks turns on asynq: those of a
// prototype that was measured, as far as another design can fall into them.
var schedules = []pitfall{
	{"S01", "an idle server slept through the starts: 8 % of a limit was used",
		in("test/sim/TestPollInterval", "worker/internal/asynqx/TestGate", "worker/internal/asynqx/TestGateInterval", "worker/TestIdleServer")},
	{"S02", "turns were times, and ran away from the limiter: released, denied, released again, 81 times",
		in("test/sim/TestTurnsDoNotDrift", "worker/TestPlannedIsPickedUpOnce")},
	{"S03", "those who were released already were forgotten: more came than units or places were there",
		in("test/traps/TestReleasedIsSetAside", "test/sim/TestTwoProcessesReleaseNoMore", "worker/TestHoldersAreBounded")},
	{"S04", "a unit was lost to a late start, and under a long window a task with it, for a window",
		in("test/sim/TestLateStartsLoseNothing", "test/traps/TestGivenBackInAnyOrder", "throttle/TestLateStart")},
	{"S05", "who was late, or met full places, went to the end of the line",
		in("test/sim/TestLateStartsLoseNothing", "worker/TestRunAll", "worker/TestFirstComeFirstServed", "test/traps/TestNeverCame")},
	{"S06", "turns were told evenly spaced where a window frees its units at once: the safety net came first",
		in("test/traps/TestExpectedByWindow", "test/sim/TestSafetyNetIsNotNeeded")},
	{"S07", "a turn came before its task had been enqueued",
		in("test/sim/TestPlannedBeforeItExists", "test/traps/TestOrphanGoesBackEightPlaces")},
	{"S08", "turns of tasks that are no more held units and places: 54 % of a limit was used; a queue that is not known yet is another thing",
		in("test/sim/TestOrphans", "worker/TestTasksAreMovedByHand", "test/traps/TestOrphanGoesBackEightPlaces", "worker/internal/asynqx/TestReleaserQueueNotFound")},
	{"S09", "the part that wakes was dead, hung or failed, and all waited for a first that nobody brought",
		in("worker/TestNobodyWakes", "worker/TestStuckWakerIsTold", "worker/TestStuckAskingAroundIsTold", "worker/TestStuckWakerIsToldByHandlers",
			"worker/internal/asynqx/TestReleaserQueueNotFound", "test/e2e/TestKilledWorker")},
	{"S10", "waking cost 7 commands a task, put it behind all that is pending, and mixed the order up",
		in("worker/internal/asynqx/TestReleaserCost", "worker/internal/asynqx/TestReleaserOrder", "worker/internal/asynqx/TestReleases", "worker/TestFirstComeFirstServed")},
	{"S11", "a limited backlog stood before everybody else in the queue",
		in("test/sim/TestBacklogIsInNobodysWay", "test/sim/TestUnplannedBacklog", "worker/TestTenantsTakeTurns")},
	{"S12", "asynq brings what is due in clumps, up to a second early: good as a safety net alone",
		in("test/sim/TestSafetyNetIsNotNeeded", "worker/TestRunAll", "test/traps/TestNeverInBulk", "worker/TestDelayIsNeverEarly")},
	{"S13", "who waits in a handler is active: a kill strands it, and counts as its failure",
		in("worker/TestRecoveredBeforeItsStart", "worker/TestHoldersAreBounded", "test/e2e/TestKilledWorker", "worker/TestShutdownWhileHolding")},
	{"S14", "a task whose turn was now stood in line and went to its queue as well",
		in("test/traps/TestStraightOrInLine")},
}

// "Each pitfall has a test that names it", and every one is run by go test.
func TestNoPitfallIsForgotten(t *testing.T) {
	t.Parallel()
	if len(schedules) != 14 {
		t.Errorf("%d pitfalls", len(schedules))
	}
	known := map[string]map[string]bool{}
	for _, p := range schedules {
		if p.wrong == "" || len(p.tests) == 0 {
			t.Errorf("%s needs what went wrong, and a test", p.id)
		}
		for _, test := range p.tests {
			at := strings.LastIndexByte(test, '/')
			dir, name := test[:at], test[at+1:]
			if known[dir] == nil {
				known[dir] = testsOf(t, filepath.Join("..", "..", filepath.FromSlash(dir)))
			}
			if !known[dir][name] {
				t.Errorf("%s names %s, and there is no such test", p.id, test)
			}
		}
		t.Logf("%s %s: %s", p.id, p.wrong, strings.Join(p.tests, ", "))
	}
}

// testsOf returns the names of a package's tests.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				tests[f.Name.Name] = true
			}
		}
	}
	return tests
}
