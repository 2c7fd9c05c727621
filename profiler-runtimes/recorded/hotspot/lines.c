// A tool of the JVM's that writes, of each address that a compiled method has a scope for, the methods there with
// bytecode and line, the innermost first. Build: cc -shared -fPIC -I$JDK/include -I$JDK/include/linux lines.c -o lines.so
#include <jvmti.h>
#include <jvmticmlr.h>
#include <stdio.h>
#include <string.h>

static FILE *out;

static int line_of(jvmtiEnv *jvmti, jmethodID method, int bci) {
    jint count;
    jvmtiLineNumberEntry *table;
    int line = -1, best = -1;
    if (bci < 0) bci = 0;
    if ((*jvmti)->GetLineNumberTable(jvmti, method, &count, &table) != JVMTI_ERROR_NONE) return -1;
    for (int i = 0; i < count; i++) {
        int start = (int)table[i].start_location;
        if (start == bci) {
            line = table[i].line_number;
            break;
        }
        if (start < bci && start >= best) {
            best = start;
            line = table[i].line_number;
        }
    }
    (*jvmti)->Deallocate(jvmti, (unsigned char *)table);
    return line;
}

static void JNICALL loaded(jvmtiEnv *jvmti, jmethodID method, jint size, const void *code, jint length,
                           const jvmtiAddrLocationMap *map, const void *info) {
    for (const jvmtiCompiledMethodLoadRecordHeader *header = info; header; header = header->next) {
        if (header->kind != JVMTI_CMLR_INLINE_INFO) continue;
        const jvmtiCompiledMethodLoadInlineRecord *record = (const void *)header;
        for (int i = 0; i < record->numpcs; i++) {
            const PCStackInfo *at = &record->pcinfo[i];
            fprintf(out, "%p", at->pc);
            for (int k = 0; k < at->numstackframes; k++) {
                char *name, *signature, *class_signature;
                jclass class;
                if ((*jvmti)->GetMethodName(jvmti, at->methods[k], &name, &signature, NULL) ||
                    (*jvmti)->GetMethodDeclaringClass(jvmti, at->methods[k], &class) ||
                    (*jvmti)->GetClassSignature(jvmti, class, &class_signature, NULL)) {
                    fprintf(out, " ?");
                    continue;
                }
                fprintf(out, " %s%s%s@%d:%d", class_signature, name, signature, at->bcis[k],
                        line_of(jvmti, at->methods[k], at->bcis[k]));
            }
            fputc('\n', out);
        }
    }
}

JNIEXPORT jint JNICALL Agent_OnAttach(JavaVM *vm, char *options, void *reserved) {
    jvmtiEnv *jvmti;
    jvmtiCapabilities capabilities;
    jvmtiEventCallbacks callbacks;
    if ((*vm)->GetEnv(vm, (void **)&jvmti, JVMTI_VERSION_11)) return 1;
    if (!(out = fopen(options, "w"))) return 2;
    memset(&capabilities, 0, sizeof capabilities);
    capabilities.can_generate_compiled_method_load_events = 1;
    capabilities.can_get_line_numbers = 1;
    if ((*jvmti)->AddCapabilities(jvmti, &capabilities)) return 3;
    memset(&callbacks, 0, sizeof callbacks);
    callbacks.CompiledMethodLoad = loaded;
    (*jvmti)->SetEventCallbacks(jvmti, &callbacks, sizeof callbacks);
    (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_ENABLE, JVMTI_EVENT_COMPILED_METHOD_LOAD, NULL);
    (*jvmti)->GenerateEvents(jvmti, JVMTI_EVENT_COMPILED_METHOD_LOAD);
    (*jvmti)->SetEventNotificationMode(jvmti, JVMTI_DISABLE, JVMTI_EVENT_COMPILED_METHOD_LOAD, NULL);
    return fclose(out);
}
