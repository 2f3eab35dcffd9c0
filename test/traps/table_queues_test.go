package traps

// jobQueues are the kinds of faults that job queues shipped.
var jobQueues = []trap{
	{"B01", "limited on the last attempt was lost; being put back counted as an attempt", by(TestLastAttempt), ""},
	{"B02", "one limit refused and another was charged", by(TestAllOrNothing), ""},
	{"B03", "charged for taking a task, for an empty queue, for a task that was too late", by(TestChargedPerRun), ""},
	{"B04", "what waited was not found after a restart, or held a place that it waited for", by(TestFoundAgain, TestNoPlaceWhileItWaits), ""},
	{"B05", "off by one window at the refill; a lowered limit stalled; writing a limit again reset it", by(TestLoweredBelowCost, TestAtTheBoundary), ""},
	{"B06", "checked, then added: two ran where one may", by(TestAttackers), ""},
	{"B07", "one of several ways through the code forgot whose limit it was", by(TestEachVerbItsOwnScope), ""},
	{"B08", "a delayed or unlimited job disturbed the limiter's sleep", by(TestOthersGoOn), ""},
	{"B09", "a cost above all there is waited for ever", by(TestRefusedBeforeItIsEnqueued), ""},
	{"B10", "a remembered refusal hid what had been freed", by(TestFreedAtOnce), ""},
	{"B11", "twice the limit around the edge of a fixed window", by(TestEdge), ""},
	{"B12", "what was reserved was released in bulk, over the limit", by(TestNeverInBulk), ""},
	{"B13", "the worker's clock instead of Redis's", by(TestServersClock), ""},
	{"B14", "the lease ran out while the task waited in line for a unit", by(TestHeldUntilItStarts, TestHeldLongerThanItsLease), ""},
}

// invariants are what must always hold.
var invariants = []trap{
	{"I01", "more than the limit in some window", by(TestAnyWindow), ""},
	{"I02", "more than burst and rate in some interval", by(TestDocumentedBound, TestFractions), ""},
	{"I03", "a refusal that changed something", by(TestRefusalsChangeNothing), ""},
	{"I04", "some rules charged and others not", by(TestAllOrNothing), ""},
	{"I05", "a wait that was too short, or longer than needed", by(TestToTheMicrosecond), ""},
	{"I06", "all who wait were told the same moment", by(TestExpectedByWindow, TestReleasedIsSetAside), ""},
	{"I07", "a cost that can never pass was told to wait", by(TestCostAboveCapacity), ""},
	{"I08", "limit 0 let something in", by(TestSuspended), ""},
	{"I09", "keys that stay for ever or go too soon", by(TestKeysOutlastTheirMeaning), ""},
	{"I10", "one attempt charged twice", by(TestLostReply), ""},
	{"I11", "a clock that steps locked everybody out, or let more in than its step", by(TestStepsForward, TestStepsBack), ""},
	{"I12", "a changed limit that forgot what was spent", by(TestKeepsWhatWasSpent), ""},
	{"I13", "windows of fractions and of months that were cut", by(TestOddWindows), ""},
	{"I14", "digits lost on the way through Redis", by(TestToTheMicrosecond), ""},
	{"I15", "keys that were not declared, or in several slots", by(TestOneSlot, TestOnlyDeclaredKeys), ""},
	{"I16", "the same limit twice in one call", by(TestRefusedPolicies), ""},
	{"I17", "names that collide or move to another slot", by(TestNamesStayApart, TestHostileNamesEndToEnd), ""},
	{"I18", "places that a crash kept", by(TestCrashedHolder, TestToldOfTheLoss), ""},
	{"I19", "a Redis that cannot write, and a silent yes", by(TestRefusesWrites, TestOutage, TestForeignKey), ""},
	{"I20", "asynq's early and late wakes over the limit", by(TestNeverInBulk, TestLastAttempt), ""},
	{"I21", "a tenant that waits delayed another", by(TestOneTenantsWait, TestOthersGoOn), ""},
}
