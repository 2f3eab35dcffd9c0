package traps

// documents are the traps of the five documents that the system comes from.
var documents = []trap{
	// Check, then act.
	{id: "T01", wrong: "the count before the call was compared with >: 11 of 10 get in", test: exactlyTheLimit},
	{id: "T02", wrong: "reading and counting were two round trips: all of ten attackers got in under 5", test: attackers},
	{id: "T03", wrong: "EXPIRE was given the count instead of the key, which stayed for ever: locked out after ten calls", test: keysOutlastTheirMeaning},
	{id: "T04", wrong: "INCR and EXPIRE were two commands: a crash between them left a count for ever", test: lostReply},
	{id: "T05", wrong: "a key that expired between GET and INCR came back without a TTL", test: atTheEdgeOfExpiry},
	{id: "T06", wrong: "the caller's clock named the window: one that was late got a fresh quota", test: serversClock},
	{id: "T07", wrong: "callers' clocks in whole seconds: as many quotas as there were clocks", like: "T06"},
	{id: "T08", wrong: "INCR with two arguments is no command", test: everyScriptRuns},
	{id: "T09", wrong: "a list of names without times: memory by the call, and counts dropped when it expired", test: boundedMemory},
	{id: "T10", wrong: "the script that was to mend it compared nothing and returned nothing", like: "T01"},
	{id: "T11", wrong: "a fixed window lets twice the limit through around its edge", test: edge},

	// One counter.
	{id: "T12", wrong: "every accepted call put the end of the window off: 293 of 554 calls below the limit got in", test: steadyBelowTheLimit},
	{id: "T13", wrong: "the script's key was not the one it was given: no cluster, no ACL", test: onlyDeclaredKeys},
	{id: "T14", wrong: "an undefined variable made every call an error", like: "T08"},
	{id: "T15", wrong: "a cost of 1 was built in, and the answer told neither what was left nor when to come back", test: costCounts},
	{id: "T16", wrong: "a window of -1 made a count that stayed for ever", test: refusedPolicies},

	// Fixed windows.
	{id: "T17", wrong: "calls were counted before they were refused: the count grew without end", test: refusalsChangeNothing},
	{id: "T18", wrong: "the TTL began with the first call and the window by the clock: the reset was up to a window late", test: resetsInTime},
	{id: "T19", wrong: "a Lua false became nil in the reply", test: wholeNumbers},
	{id: "T20", wrong: "keys were made up inside the script", like: "T13"},
	{id: "T21", wrong: "two rules with the same key were both counted for one call", test: namesStayApart},
	{id: "T22", wrong: "the TTL of a key that did not exist, -2, was told as its reset", like: "T18"},
	{id: "T23", wrong: "limit and window were part of the key: a change gave everybody a fresh quota", test: keepsWhatWasSpent},

	// Sliding log.
	{id: "T24", wrong: "the time in seconds was the entry's name: all calls of a second were one", test: inOneMoment},
	{id: "T25", wrong: "an entry's name was read as its time", test: idsAreNames},
	{id: "T26", wrong: "errors of Redis were swallowed and the call allowed", test: foreignKey},
	{id: "T27", wrong: "the caller's clock trimmed the log: one that was fast deleted everybody's calls", like: "T06"},
	{id: "T28", wrong: "refused calls kept keys alive, whose TTL was otherwise a window and no more", like: "T17"},
	{id: "T29", wrong: "the rules were part of the script, and what they said came back as nil", like: "T19"},

	// Sliding counters.
	{id: "T30", wrong: "the oldest bucket was dropped while part of it was in the window: 200 of 100 in 51 s", test: anyWindow},
	{id: "T31", wrong: "a second key beside the one that was named", like: "T13"},
	{id: "T32", wrong: "seconds were compared with numbers of buckets: below a second nothing was ever trimmed", test: oddWindows},
	{id: "T33", wrong: "a bucket was made before the decision, without a TTL", test: lookingLeavesNothing},
	{id: "T34", wrong: "a TTL with a fraction was an error after the count had been raised", like: "T32"},
	{id: "T35", wrong: "all fields were read and summed for each decision, without a bound", like: "T09"},
	{id: "T36", wrong: "a precision that does not divide the window made it another window", like: "T32"},
	{id: "T37", wrong: "the wait was until the oldest bucket left, not until the request fits", test: slidingCounters},
	{id: "T38", wrong: "a cost of 1 was built in", like: "T15"},

	// Token bucket with debt.
	{id: "T39", wrong: "what was taken was subtracted twice and time never spent: 17 of 10 at once, the next after 11 s instead of 1", test: tokenBucketScript},
	{id: "T40", wrong: "the wait lost its sign: the time since was told as the time until", like: "T39"},
	{id: "T41", wrong: "an allowed call was told a wait, of any sign", like: "T39"},
	{id: "T42", wrong: "the key expired while something was still owed", test: deepDebt},
	{id: "T43", wrong: "a default that could never be reached: a missing argument was an error", test: slowestRates},
	{id: "T44", wrong: "a key of another type in the way would have been deleted", like: "T26"},
	{id: "T45", wrong: "the key was an argument", like: "T13"},
	{id: "T46", wrong: "a cost above the burst was told to come back, for ever", test: costAboveCapacity},
	{id: "T47", wrong: "the first caller's clock was believed: a fast one kept everybody out until time caught up", test: stepsBack},
	{id: "T48", wrong: "a line in the server's log for each refusal", test: quietLog},
	{id: "T49", wrong: "units came back in lumps", test: continuous},

	// Token bucket with a management page.
	{id: "T50", wrong: "the fraction of a unit was dropped at each call: half the quota was lost", test: fractions},
	{id: "T51", wrong: "time that ran backwards emptied the bucket to -591: a minute for nobody", like: "T47"},
	{id: "T52", wrong: "refusals were written", like: "T17"},
	{id: "T53", wrong: "limits and state shared a key that could never expire", like: "T03"},
	{id: "T54", wrong: "0 for no limit configured was easily read as either answer", test: noRules},
	{id: "T55", wrong: "a count in one process, begun at 1: one too few, and per process", test: runs},

	// The pattern and its attack.
	{id: "T56", wrong: "a refusal was raised as an error of the script", like: "T08"},
	{id: "T57", wrong: "the first call was let in before the limit was looked at, also under limit 0", test: suspended},
	{id: "T58", wrong: "a key without a TTL was never mended", test: lostTTL},
	{id: "T59", wrong: "every accepted call put the end of the window off", like: "T12"},

	// The nested limits file.
	{id: "T60", wrong: "every level was charged and then asked: refused work used up the parent's quota", test: nestedLimits},
	{id: "T61", wrong: "the answer as a whole mixed the numbers of several levels and was no limit's", test: ofOneRule},
	{id: "T62", wrong: "waits in whole seconds, rounded down: back too early", test: toTheMicrosecond},
	{id: "T63", wrong: "max_burst meant one less than it admits", test: notOnlyARate},
	{id: "T64", wrong: "names joined by a colon: user alex:trade was trade of user alex", like: "T21"},
	{id: "T65", wrong: "levels were in different slots of a cluster", test: oneSlot},
	{id: "T66", wrong: "no rule at all was an exception, or meant allowed", like: "T54"},
	{id: "T67", wrong: "a burst and a rate were sold as a limit: 45 in a minute of 30", test: documentedBound},
}
