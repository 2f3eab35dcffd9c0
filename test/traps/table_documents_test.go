package traps

// documents are the traps of the five documents that the system comes from.
var documents = []trap{
	// Check, then act.
	{"T01", "the count before the call was compared with >: 11 of 10 get in", by(TestExactlyTheLimit), ""},
	{"T02", "reading and counting were two round trips: all of ten attackers got in under 5", by(TestAttackers), ""},
	{"T03", "EXPIRE was given the count instead of the key, which stayed for ever: locked out after ten calls", by(TestKeysOutlastTheirMeaning), ""},
	{"T04", "INCR and EXPIRE were two commands: a crash between them left a count for ever", by(TestLostReply), ""},
	{"T05", "a key that expired between GET and INCR came back without a TTL", by(TestAtTheEdgeOfExpiry), ""},
	{"T06", "the caller's clock named the window: one that was late got a fresh quota", by(TestServersClock), ""},
	{"T07", "callers' clocks in whole seconds: as many quotas as there were clocks", by(TestServersClock), ""},
	{"T08", "INCR with two arguments is no command", by(TestEveryScriptRuns), ""},
	{"T09", "a list of names without times: memory by the call, and counts dropped when it expired", by(TestBoundedMemory), ""},
	{"T10", "the script that was to mend it compared nothing and returned nothing", by(TestExactlyTheLimit), ""},
	{"T11", "a fixed window lets twice the limit through around its edge", by(TestEdge), ""},

	// One counter.
	{"T12", "every accepted call put the end of the window off: 293 of 554 calls below the limit got in", by(TestSteadyBelowTheLimit), ""},
	{"T13", "the script's key was not the one it was given: no cluster, no ACL", by(TestOnlyDeclaredKeys), ""},
	{"T14", "an undefined variable made every call an error", by(TestEveryScriptRuns), ""},
	{"T15", "a cost of 1 was built in, and the answer told neither what was left nor when to come back", by(TestCostCounts), ""},
	{"T16", "a window of -1 made a count that stayed for ever", by(TestRefusedPolicies), ""},

	// Fixed windows.
	{"T17", "calls were counted before they were refused: the count grew without end", by(TestRefusalsChangeNothing), ""},
	{"T18", "the TTL began with the first call and the window by the clock: the reset was up to a window late", by(TestResetsInTime), ""},
	{"T19", "a Lua false became nil in the reply", by(TestWholeNumbers), ""},
	{"T20", "keys were made up inside the script", by(TestOnlyDeclaredKeys), ""},
	{"T21", "two rules with the same key were both counted for one call", by(TestNamesStayApart), ""},
	{"T22", "the TTL of a key that did not exist, -2, was told as its reset", by(TestResetsInTime), ""},
	{"T23", "limit and window were part of the key: a change gave everybody a fresh quota", by(TestKeepsWhatWasSpent), ""},

	// Sliding log.
	{"T24", "the time in seconds was the entry's name: all calls of a second were one", by(TestInOneMoment), ""},
	{"T25", "an entry's name was read as its time", by(TestIdsAreNames), ""},
	{"T26", "errors of Redis were swallowed and the call allowed", by(TestForeignKey), ""},
	{"T27", "the caller's clock trimmed the log: one that was fast deleted everybody's calls", by(TestServersClock), ""},
	{"T28", "refused calls kept keys alive, whose TTL was otherwise a window and no more", by(TestRefusalsChangeNothing, TestKeysOutlastTheirMeaning), ""},
	{"T29", "the rules were part of the script, and what they said came back as nil", by(TestWholeNumbers, TestSlidingLog), ""},

	// Sliding counters.
	{"T30", "the oldest bucket was dropped while part of it was in the window: 200 of 100 in 51 s", by(TestAnyWindow), ""},
	{"T31", "a second key beside the one that was named", by(TestOnlyDeclaredKeys), ""},
	{"T32", "seconds were compared with numbers of buckets: below a second nothing was ever trimmed", by(TestOddWindows), ""},
	{"T33", "a bucket was made before the decision, without a TTL", by(TestLookingLeavesNothing), ""},
	{"T34", "a TTL with a fraction was an error after the count had been raised", by(TestOddWindows), ""},
	{"T35", "all fields were read and summed for each decision, without a bound", by(TestBoundedMemory), ""},
	{"T36", "a precision that does not divide the window made it another window", by(TestOddWindows), ""},
	{"T37", "the wait was until the oldest bucket left, not until the request fits", by(TestSlidingCounters, TestToTheMicrosecond), ""},
	{"T38", "a cost of 1 was built in", by(TestCostCounts), ""},

	// Token bucket with debt.
	{"T39", "what was taken was subtracted twice and time never spent: 17 of 10 at once, the next after 11 s instead of 1", by(TestTokenBucketScript), ""},
	{"T40", "the wait lost its sign: the time since was told as the time until", by(TestTokenBucketScript), ""},
	{"T41", "an allowed call was told a wait, of any sign", by(TestTokenBucketScript), ""},
	{"T42", "the key expired while something was still owed", by(TestDeepDebt, TestKeysOutlastTheirMeaning), ""},
	{"T43", "a default that could never be reached: a missing argument was an error", by(TestSlowestRates), ""},
	{"T44", "a key of another type in the way would have been deleted", by(TestForeignKey), ""},
	{"T45", "the key was an argument", by(TestOnlyDeclaredKeys), ""},
	{"T46", "a cost above the burst was told to come back, for ever", by(TestCostAboveCapacity, TestRefusedBeforeItIsEnqueued), ""},
	{"T47", "the first caller's clock was believed: a fast one kept everybody out until time caught up", by(TestStepsBack), ""},
	{"T48", "a line in the server's log for each refusal", by(TestQuietLog), ""},
	{"T49", "units came back in lumps", by(TestContinuous), ""},

	// Token bucket with a management page.
	{"T50", "the fraction of a unit was dropped at each call: half the quota was lost", by(TestFractions), ""},
	{"T51", "time that ran backwards emptied the bucket to -591: a minute for nobody", by(TestStepsBack), ""},
	{"T52", "refusals were written", by(TestRefusalsChangeNothing), ""},
	{"T53", "limits and state shared a key that could never expire", by(TestKeysOutlastTheirMeaning), ""},
	{"T54", "0 for no limit configured was easily read as either answer", by(TestNoRules), ""},
	{"T55", "a count in one process, begun at 1: one too few, and per process", by(TestRuns), ""},

	// The pattern and its attack.
	{"T56", "a refusal was raised as an error of the script", by(TestEveryScriptRuns), ""},
	{"T57", "the first call was let in before the limit was looked at, also under limit 0", by(TestSuspended), ""},
	{"T58", "a key without a TTL was never mended", by(TestLostTTL), ""},
	{"T59", "every accepted call put the end of the window off", by(TestSteadyBelowTheLimit), ""},

	// The nested limits file.
	{"T60", "every level was charged and then asked: refused work used up the parent's quota", by(TestNestedLimits), ""},
	{"T61", "the answer as a whole mixed the numbers of several levels and was no limit's", by(TestOfOneRule), ""},
	{"T62", "waits in whole seconds, rounded down: back too early", by(TestToTheMicrosecond), ""},
	{"T63", "max_burst meant one less than it admits", by(TestNotOnlyARate), ""},
	{"T64", "names joined by a colon: user alex:trade was trade of user alex", by(TestNamesStayApart, TestHostileNamesEndToEnd), ""},
	{"T65", "levels were in different slots of a cluster", by(TestOneSlot), ""},
	{"T66", "no rule at all was an exception, or meant allowed", by(TestNoRules), ""},
	{"T67", "a burst and a rate were sold as a limit: 45 in a minute of 30", by(TestDocumentedBound), ""},
}
