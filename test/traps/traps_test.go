// Package traps holds Headway against what went wrong elsewhere.
//
// The table names each known fault and the test that shows that it cannot happen here. T are faults of five documents on
// limiters in Redis, L of limiters that ship, B of job queues, I what must always hold, and S faults of schedules of limited
// tasks. The tests stand in the packages that they concern; what none of them shows is shown here.
package traps

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tests that find most faults, by the names that the table has for them.
var layers = map[string]string{
	"model":     "test/reference/TestDecisionsAreAsThePagesSay", // each answer and key with a model's, to the unit and the microsecond
	"steps":     "throttle/TestClockSteps",
	"attackers": "test/traps/TestAttackers",
	"declared":  "internal/waitlist/TestOnCluster", // all keys of a provider are in one slot
	"replies":   "throttle/TestLostReplyIsChargedOnce",
	"outages":   "throttle/TestFailurePolicies",
	"names":     "internal/wire/TestKeysNeverCollide",
	"changes":   "test/sim/TestLoweredLimitCountsFromNowOn",
	"turns":     "internal/wire/TestHistories",
	"notFailed": "worker/TestLimitedIsNoFailure",
	"days":      "test/sim/TestDays",
	"faulty":    "throttle/limitsyaml/TestParseFaults",
}

// A line is the ids of the faults, what went wrong, and the tests that show that it does not here.
const table = `
T01 T10 T57 I08 | the limit was compared wrongly, or not at all: one too many, or one under limit 0 | model
T02 B06 | check, then act: of ten attackers all got in | attackers
T03 T05 T28 T42 T53 L08 I09 | keys without a TTL, or with one that ended too soon | model
T04 L33 I10 L31 | a crash or a lost reply between two commands; sent again and charged twice | replies
T06 T07 T27 T47 B13 | the caller's clock counted | model worker/TestWaitsGoByRedissClock
T08 T14 T56 | a script that Redis does not understand, or a refusal that is an error | lua/TestLoad model
T09 T35 | memory by the call | test/traps/TestBoundedMemory
T11 T30 B11 I01 T36 T32 I13 L04 L29 | windows that were cut, rounded or dropped too soon: more than the limit in some window | model
T12 T59 | each call put the end of the window off | model
T13 T20 T31 T45 I15 T65 | keys that were not declared, or in several slots | declared queue/TestCluster
T15 T38 L09 | the cost was built in, or charged and not looked at | model
T16 I16 | values that do not mean what they say | faulty
T17 T52 L02 L17 L24 I03 | a refusal that changed something, or was counted | model
T18 T22 | a reset that was wrong | model
T19 T29 | a Lua false or a fraction in a reply | model
T21 T64 I17 | names that collide | names test/e2e/TestHostileScopes
T23 L13 I12 | a changed limit forgot what was spent | changes turns
T24 T25 | calls of one moment were one; an id was read as a time | model throttle/TestSameIDInTwoScopes
T26 T44 I19 | a key of another type, an error of Redis: and a silent yes | throttle/TestForeignKey outages test/faults/TestServerFaults
T33 | a look made a key | model
T34 | a TTL with a fraction | model
T37 I05 T62 L06 L07 I14 | waits that were too short, too long, or lost digits | model
T39 T40 T41 T49 T50 I02 L26 | a bucket that loses fractions, refills in lumps, or admits what it has not | model test/reference/TestJudgeFindsOneOver
T43 L14 T63 T67 L27 | rates and bursts that could not be said, or meant another number | model throttle/TestSteps
T46 L12 I07 B09 | a cost above all there is was told to come back | worker/TestNeverPasses queue/TestEnqueueRefuses
T48 | a line in the server's log for each refusal | lua/TestForbidden
T51 I11 L25 | a clock that steps locked all out, or filled the same interval twice | steps
T54 T66 | no rule at all was an error, or meant allowed | throttle/policy/TestMatchUnmatched worker/TestUnmatchedFails
T55 | a count in one process | attackers
T58 L28 | a key without a TTL was never mended, or a stale count got a new one | model
T60 B02 I04 | some rules were charged and others not | model
T61 | one answer mixed the numbers of several rules | throttle/TestFive
L01 | TTLs cut to whole seconds | model
L03 | compare and swap on a busy key | attackers throttle/TestOneRoundTrip
L05 | a new connection for each call | throttle/TestCallersShareRoundTrips
L10 L32 | a time-out meant allowed, and work by the number of keys | throttle/TestTimeout outages
L11 | part of a unit was charged and not granted | model
L15 L30 L16 | a failover forgot scripts or counts, and what had to be set up first | throttle/TestScriptsComeBack test/faults/TestSentinelFailover
L18 L19 I18 | places that a crash kept, or that a refusal lost | throttle/TestSteps worker/TestPlacesAreFreed
L20 L21 L22 | what was owed or given back came back without a cap, or not in some order | model
L23 B03 | a unit for each pick-up of a task, not for each run | worker/TestFirstComeFirstServed days
L34 B01 I20 | limited on its last attempt, a task was archived | notFailed worker/TestForeignLastAttempt
L35 B12 | told times were rounded, and what was reserved came in bulk | throttle/TestLateIsNeverOver days
B04 | what waited was not found after a restart, or held a place | worker/TestNobodyDispatches worker/TestWaitSurvives turns
B05 | off by one window; a lowered limit stalled | model changes
B07 | one way through the code forgot whose limit it was | throttle/TestSameIDInTwoScopes
B08 I21 S11 | one that waits delayed others | worker/TestHoldersAreBounded worker/TestTenantsTakeTurns test/sim/TestBacklogIsInNobodysWay
B10 | a remembered refusal hid what had been freed | worker/TestFreedPlaceWakes
B14 | a lease ran out while its task waited | throttle/TestLease worker/TestPlacesAreFreed
I06 S06 | all who wait were told the same moment, or evenly spaced ones where a window frees its units at once | turns test/sim/TestSafetyNetIsNotNeeded
S01 | an idle server slept through the starts | test/sim/TestPollInterval
S02 | turns were times, and ran away from the limiter | test/sim/TestTurnsDoNotDrift
S03 | those who were released already were forgotten | turns test/sim/TestTwoProcessesReleaseNoMore
S04 S05 | a late start lost its unit or its place | test/sim/TestLateStartsLoseNothing throttle/TestLateStart worker/TestFirstComeFirstServed
S07 S08 | a turn came before its task, or stayed after it | test/sim/TestPlannedBeforeItExists test/sim/TestOrphans
S09 | the part that wakes was dead | worker/TestNobodyDispatches test/e2e/TestKilledWorker
S10 | waking cost commands, and mixed the order up | worker/internal/asynqx/TestReleaserCost
S12 | asynq brings what is due in clumps, up to a second early | test/sim/TestSafetyNetIsNotNeeded worker/TestDelayIsNeverEarly
S13 | a kill strands what waits in a handler | worker/TestRecoveredBeforeItsStart worker/TestShutdownWhileHolding
S14 | a task went to its queue and stood in line as well | turns
`

// "Known faults of other limiters and queues are each covered by a test."
func TestNoTrapIsForgotten(t *testing.T) {
	t.Parallel()
	left := map[string]bool{}
	for letter, count := range map[string]int{"T": 67, "L": 35, "B": 14, "I": 21, "S": 14} {
		for i := range count {
			left[letter+string([]byte{'0' + byte((i+1)/10), '0' + byte((i+1)%10)})] = true
		}
	}
	known := map[string]map[string]bool{}
	for line := range strings.Lines(strings.TrimSpace(table)) {
		cells := strings.Split(line, "|")
		if len(cells) != 3 || strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "" {
			t.Fatalf("%q has no three cells", line)
		}
		for id := range strings.FieldsSeq(cells[0]) {
			if !left[id] {
				t.Errorf("%s is no fault, or stands twice", id)
			}
			delete(left, id)
		}
		for test := range strings.FieldsSeq(cells[2]) {
			if layers[test] != "" {
				test = layers[test]
			}
			dir, name := filepath.Split(test)
			if known[dir] == nil {
				known[dir] = testsOf(t, dir)
			}
			if !known[dir][name] {
				t.Errorf("%s: there is no %s; name the test that shows now that it cannot happen", strings.TrimSpace(cells[0]), test)
			}
		}
	}
	for id := range left {
		t.Errorf("%s has no test", id)
	}
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// testsOf returns the names of a package's tests.
func testsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no tests in %s: %v", dir, err)
	}
	tests := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testFunc.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
	}
	return tests
}
