%% A process that waits deep in a stack, and what the emulator says of it: `stacks:main([FILE])`.
%%
%% FILE gets a line `function NAME` for each function of the modules that the stack is of, and a line `frame NAME`, file and
%% line, with tabs, for each call in it, innermost first.
-module(stacks).

-export([main/1, 'Großes "Ding"'/1, größe/1, far/3]).

main([File]) ->
    erlang:system_flag(backtrace_depth, 64),
    Parent = self(),
    Waiting = spawn_link(fun() -> largest(6, Parent) end),
    receive Waiting -> ok end,
    {current_stacktrace, Frames} = wait(Waiting),
    Functions = [io_lib:format("function ~ts~n", [name(Module, Name, Arity)])
                 || Module <- [?MODULE, orddict], {Name, Arity} <- Module:module_info(functions)],
    Said = [io_lib:format("frame ~ts\t~ts\t~w~n", [name(Module, Name, Arity), proplists:get_value(file, Place),
                                                   proplists:get_value(line, Place)])
            || {Module, Name, Arity, Place} <- Frames],
    ok = file:write_file(File, unicode:characters_to_binary([Functions, Said])),
    receive never -> ok end.

name(Module, Name, Arity) ->
    io_lib:format("~tw:~tw/~w", [Module, Name, Arity]).

%% It says that it will wait before it does.
wait(Process) ->
    case process_info(Process, status) of
        {status, waiting} -> process_info(Process, current_stacktrace);
        _ -> timer:sleep(1), wait(Process)
    end.

%% No call is the last thing that a function does: each has a frame.
largest(0, Parent) ->
    1 + 'Großes "Ding"'(Parent);
largest(Depth, Parent) ->
    1 + largest(
          Depth - 1,
          Parent).

'Großes "Ding"'(Parent) ->
    hd([größe(Each) || Each <- [Parent]]).

größe(Parent) ->
    1 + orddict:fold(fun(Key, Value, Sum) -> Sum + ?MODULE:far(Key, Value, Parent) end, 0, [{1, 2}]).

%% Lines that are far apart, of a file with a name that is not ASCII.
-file("/tmp/Ω/遠い.hrl", 5000).
far(Key, Value, Parent) ->
    try
        Key + Value + '日本'(Parent)
    catch
        throw:never -> 0
    end.

-file("/tmp/Ω/遠い.hrl", 70000).
'日本'(Parent) ->
    Parent ! self(),
    receive
        {number, Number} ->
            Number
    end.
